// SPDX-License-Identifier: Apache-2.0
#include <tinyllm/core/cpu_level.hpp>
#include <tinyllm/core/dtype.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

using tinyllm::CpuLevel;
using tinyllm::Index;

namespace {

std::vector<CpuLevel> levels_here() {
  std::vector<CpuLevel> levels;
  for (const CpuLevel level : tinyllm::cpu_levels) {
    if (tinyllm::runs(level)) levels.push_back(level);
  }
  return levels;
}

template <class Dtype>
std::uint16_t bits_of(Dtype x) {
  return Eigen::numext::bit_cast<std::uint16_t>(x);
}

// Whether two floats are the same number, or both none; zeros differ by sign.
bool same(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

template <class Dtype>
std::vector<Dtype> all_values() {
  std::vector<Dtype> values;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    values.push_back(Eigen::numext::bit_cast<Dtype>(static_cast<std::uint16_t>(bits)));
  }
  return values;
}

template <class Dtype>
void check_all_values() {
  const std::vector<Dtype> values = all_values<Dtype>();
  for (const CpuLevel level : levels_here()) {
    CAPTURE(name(level));
    std::vector<float> wide(values.size());
    tinyllm::widen(values.data(), 65536, wide.data(), level);
    std::vector<Dtype> back(values.size());
    CHECK(tinyllm::narrow(wide.data(), 65536, back.data(), level) == 0);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool number = !std::isnan(static_cast<float>(values[i]));
      wrong += static_cast<std::size_t>(!same(wide[i], static_cast<float>(values[i])));
      wrong +=
          static_cast<std::size_t>(number ? bits_of(back[i]) != bits_of(values[i]) : !std::isnan(static_cast<float>(back[i])));
    }
    CHECK(wrong == 0);
  }
}

// Floats at, just below and just above each half-way point between two neighbours of the type.
template <class Dtype>
std::vector<float> boundaries() {
  std::vector<float> floats;
  const float infinity = std::numeric_limits<float>::infinity();
  for (std::uint32_t bits = 0; bits < 0x8000U; ++bits) {
    const auto low = static_cast<float>(Eigen::numext::bit_cast<Dtype>(static_cast<std::uint16_t>(bits)));
    const auto high = static_cast<float>(Eigen::numext::bit_cast<Dtype>(static_cast<std::uint16_t>(bits + 1)));
    if (!std::isfinite(low)) continue;
    float middle = low + (high - low) / 2;
    if (!std::isfinite(high)) middle = std::is_same_v<Dtype, Eigen::half> ? 65520.0F : std::bit_cast<float>(0x7f7f8000U);
    for (const float x :
         {low, std::nextafter(low, infinity), std::nextafter(middle, 0.0F), middle, std::nextafter(middle, infinity)}) {
      floats.push_back(x);
      floats.push_back(-x);
    }
  }
  return floats;
}

template <class Dtype>
void check_rounding(const std::vector<float>& floats) {
  const auto count = static_cast<Index>(floats.size());
  for (const CpuLevel level : levels_here()) {
    CAPTURE(name(level));
    std::vector<Dtype> narrow(floats.size());
    const std::size_t overflowed = tinyllm::narrow(floats.data(), count, narrow.data(), level);
    std::size_t expected_overflowed = 0;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < floats.size(); ++i) {
      const Dtype expected(floats[i]);
      expected_overflowed += static_cast<std::size_t>(std::isfinite(floats[i]) && std::isinf(static_cast<float>(expected)));
      const bool right =
          std::isnan(floats[i]) ? std::isnan(static_cast<float>(narrow[i])) : bits_of(narrow[i]) == bits_of(expected);
      wrong += static_cast<std::size_t>(!right);
    }
    CHECK(wrong == 0);
    CHECK(overflowed == expected_overflowed);
  }
}

template <class Dtype>
void check_tails() {
  for (const CpuLevel level : levels_here()) {
    CAPTURE(name(level));
    for (Index count = 0; count < 70; ++count) {
      CAPTURE(count);
      std::vector<float> floats(static_cast<std::size_t>(count) + 1, 1e30F);  // the last one is not ours
      for (Index i = 0; i < count; ++i) floats[static_cast<std::size_t>(i)] = static_cast<float>(i) - 7.5F;
      std::vector<Dtype> narrow(floats.size(), Dtype(3.0F));
      CHECK(tinyllm::narrow(floats.data(), count, narrow.data(), level) == 0);
      CHECK(static_cast<float>(narrow.back()) == 3.0F);
      std::vector<float> wide(floats.size(), 5.0F);
      tinyllm::widen(narrow.data(), count, wide.data(), level);
      CHECK(wide.back() == 5.0F);
      for (std::size_t i = 0; i + 1 < wide.size(); ++i) REQUIRE(wide[i] == floats[i]);
    }
  }
}

}  // namespace

TEST_CASE("dtype: all 65,536 values of half and bfloat16 survive both ways at every level") {
  check_all_values<Eigen::half>();
  check_all_values<Eigen::bfloat16>();
}

TEST_CASE("dtype: every boundary rounds as IEEE says at every level") {
  check_rounding<Eigen::half>(boundaries<Eigen::half>());
  check_rounding<Eigen::bfloat16>(boundaries<Eigen::bfloat16>());
}

TEST_CASE("dtype: random bit patterns round as Eigen rounds them") {
  std::mt19937 random(3);
  std::vector<float> floats;
  for (int i = 0; i < 200000; ++i) floats.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  check_rounding<Eigen::half>(floats);
  check_rounding<Eigen::bfloat16>(floats);
}

TEST_CASE("dtype: only finite values that become infinite are counted") {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> floats{65519.9F, 65520.0F, -65520.0F, 1e30F, infinity, -infinity, std::nanf(""), 3.4e38F, 0.0F};
  std::vector<Eigen::half> halves(floats.size());
  CHECK(tinyllm::store_row(floats.data(), 1, 9, halves.data()) == 4);
  CHECK(static_cast<float>(halves[0]) == 65504.0F);
  std::vector<Eigen::bfloat16> small(floats.size());
  CHECK(tinyllm::store_row(floats.data(), 1, 9, small.data()) == 1);
}

TEST_CASE("dtype: rows of any length, and nothing behind them, are touched") {
  check_tails<Eigen::half>();
  check_tails<Eigen::bfloat16>();
  check_tails<float>();
}

TEST_CASE("dtype: strided rows are stored as contiguous ones are") {
  std::vector<float> floats(3 * 130);
  for (std::size_t i = 0; i < floats.size(); ++i) floats[i] = i % 3 == 0 ? 700.0F * static_cast<float>(i) : std::nanf("");
  std::vector<Eigen::half> halves(130);
  std::size_t expected = 0;
  for (std::size_t i = 0; i < 130; ++i) expected += static_cast<std::size_t>(floats[3 * i] >= 65520.0F);
  CHECK(tinyllm::store_row(floats.data(), 3, 130, halves.data()) == expected);
  for (std::size_t i = 0; i < 130; ++i) CHECK(bits_of(halves[i]) == bits_of(Eigen::half(floats[3 * i])));
}

TEST_CASE("dtype: int8 rows are off by half a scale at most, the same at every level, contiguous or strided") {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (const Index count : {1, 2, 7, 16, 64, 65, 128, 1000, 1024, 1500, 2100}) {
    CAPTURE(count);
    const auto n = static_cast<std::size_t>(count);
    const float size = std::exp(normal(random) * 10);
    std::vector<float> numbers(n);
    std::vector<float> strided(3 * n, std::nanf(""));
    for (std::size_t i = 0; i < n; ++i) strided[3 * i] = numbers[i] = size * normal(random);
    float largest = 0;
    for (const float x : numbers) largest = std::max(largest, std::abs(x));
    std::vector<std::int8_t> first;
    for (const CpuLevel level : levels_here()) {
      CAPTURE(name(level));
      std::vector<std::int8_t> integers(n + 1, 99);  // the last one is not ours
      const float scale = tinyllm::quantize(numbers.data(), 1, count, integers.data(), level);
      CHECK(scale == largest / 127.0F);
      CHECK(integers.back() == 99);
      std::vector<float> back(n);
      tinyllm::dequantize(integers.data(), count, scale, back.data());
      double worst = 0;
      for (std::size_t i = 0; i < n; ++i)
        worst = std::max(worst, std::abs(static_cast<double>(back[i]) - static_cast<double>(numbers[i])));
      CHECK(worst <= 0.5 * static_cast<double>(scale) * (1 + 1e-4));
      if (first.empty()) first = integers;
      CHECK(integers == first);
      std::fill(integers.begin(), integers.end(), std::int8_t{5});
      CHECK(tinyllm::quantize(strided.data(), 3, count, integers.data(), level) == scale);
      CHECK(std::equal(integers.begin(), integers.end() - 1, first.begin()));
    }
  }
}

TEST_CASE("dtype: int8 rows of zeros, of the smallest and largest numbers, and of none") {
  for (const CpuLevel level : levels_here()) {
    CAPTURE(name(level));
    std::vector<std::int8_t> integers(4);
    const auto scale_of = [&](const std::vector<float>& numbers) {
      return tinyllm::quantize(numbers.data(), 1, static_cast<Index>(numbers.size()), integers.data(), level);
    };
    CHECK(scale_of({0, -0.0F, 0, 0}) == 0.0F);
    CHECK(integers == std::vector<std::int8_t>{0, 0, 0, 0});
    CHECK(scale_of({1e-40F, 0, -1e-40F, 0}) == 0.0F);
    CHECK(integers == std::vector<std::int8_t>{0, 0, 0, 0});
    const float most = std::numeric_limits<float>::max();
    CHECK(scale_of({most, -most, most / 2, 0}) == most / 127.0F);
    CHECK(integers == std::vector<std::int8_t>{127, -127, 64, 0});
    for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
      CHECK(std::isnan(scale_of({1, bad, 2, 3})));
      CHECK(integers == std::vector<std::int8_t>{0, 0, 0, 0});
    }
  }
}

TEST_CASE("dtype: levels have names, and this machine runs the oldest") {
  CHECK(tinyllm::runs(CpuLevel::portable));
  CHECK(tinyllm::runs(tinyllm::best_level()));
  CHECK(std::string_view(name(CpuLevel::avx512_vnni)) == "avx512_vnni");
  CHECK(std::string_view(name(CpuLevel::avx512_bf16)) == "avx512_bf16");
}
