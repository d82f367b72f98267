// SPDX-License-Identifier: Apache-2.0
#include "quants.hpp"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <Eigen/Core>

using engine::dequantize_row;
using engine::FileError;
using engine::TensorType;

namespace {

using Bytes = std::vector<std::byte>;

void put(Bytes& bytes, const std::vector<int>& values) {
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value & 0xFF));
}

// 1.0, 0.5 and -2.0 as halves, low byte first.
const std::vector<int> one{0x00, 0x3C};
const std::vector<int> half{0x00, 0x38};
const std::vector<int> minus_two{0x00, 0xC0};

std::vector<float> read(TensorType type, const Bytes& bytes, std::size_t n) {
  std::vector<float> out(n, -99.0F);
  dequantize_row(type, bytes.data(), out);
  return out;
}

}  // namespace

TEST_CASE("quants_half_to_float_equals_eigen_for_every_bit_pattern") {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float mine = engine::half_to_float(static_cast<std::uint16_t>(bits));
    const auto theirs = static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(static_cast<std::uint16_t>(bits)));
    if (std::isnan(theirs)) {
      if (!std::isnan(mine)) FAIL_CHECK("half " << bits);
    } else if (mine != theirs || std::signbit(mine) != std::signbit(theirs)) {
      FAIL_CHECK("half " << bits << " is " << theirs << ", not " << mine);
    }
  }
}

TEST_CASE("quants_plain_numbers") {
  const std::array<float, 3> values{1.5F, -0.25F, 3e30F};
  Bytes f32(12);
  std::memcpy(f32.data(), values.data(), 12);
  CHECK(read(TensorType::F32, f32, 3) == std::vector<float>(values.begin(), values.end()));

  Bytes f16;
  for (const auto& bits : {one, half, minus_two}) put(f16, bits);
  CHECK(read(TensorType::F16, f16, 3) == std::vector<float>{1.0F, 0.5F, -2.0F});

  Bytes bf16;
  put(bf16, {0x80, 0x3F, 0x00, 0xC0});
  CHECK(read(TensorType::BF16, bf16, 2) == std::vector<float>{1.0F, -2.0F});
}

TEST_CASE("quants_q8_0") {
  Bytes row;
  for (const auto& scale : {half, minus_two}) {  // two blocks, so that the second one's place is checked
    put(row, scale);
    for (int i = 0; i < 32; ++i) put(row, {i * 8 - 128});
  }
  const std::vector<float> out = read(TensorType::Q8_0, row, 64);
  for (std::size_t i = 0; i < 32; ++i) {
    const float q = static_cast<float>(i) * 8 - 128;
    CHECK(out[i] == 0.5F * q);
    CHECK(out[32 + i] == -2.0F * q);
  }
}

TEST_CASE("quants_nibbles_low_halves_come_first") {
  Bytes q4_0;
  put(q4_0, minus_two);
  Bytes q4_1;
  put(q4_1, half);
  put(q4_1, minus_two);
  Bytes q5_0;
  put(q5_0, half);
  put(q5_0, {0x01, 0x80, 0x02, 0x80});  // high bits of values 0, 15, 17 and 31
  for (int i = 0; i < 16; ++i) {
    const int byte = i | ((15 - i) << 4);
    put(q4_0, {byte});
    put(q4_1, {byte});
    put(q5_0, {byte});
  }
  const std::vector<float> zero_centred = read(TensorType::Q4_0, q4_0, 32);
  const std::vector<float> with_minimum = read(TensorType::Q4_1, q4_1, 32);
  const std::vector<float> five_bits = read(TensorType::Q5_0, q5_0, 32);
  for (std::size_t i = 0; i < 32; ++i) {
    const float q = i < 16 ? static_cast<float>(i) : 31.0F - static_cast<float>(i);
    CHECK(zero_centred[i] == -2.0F * (q - 8));
    CHECK(with_minimum[i] == 0.5F * q - 2.0F);
    const float high = i == 0 || i == 15 || i == 17 || i == 31 ? 16.0F : 0.0F;
    CHECK(five_bits[i] == 0.5F * (q + high - 16));
  }
}

TEST_CASE("quants_q4_k_scales_and_minima") {
  // Scale and minimum of each run of 32 are six bits: s = 7·j + 5 and t = 63 − 8·j use all of them.
  Bytes row;
  put(row, half);
  put(row, minus_two);
  std::array<int, 12> packed{};
  for (std::size_t j = 0; j < 8; ++j) {
    const int s = 7 * static_cast<int>(j) + 5;
    const int t = 63 - 8 * static_cast<int>(j);
    if (j < 4) {
      packed[j] |= s;
      packed[j + 4] |= t;
    } else {
      packed[j + 4] |= (s & 15) | ((t & 15) << 4);
      packed[j - 4] |= (s >> 4) << 6;
      packed[j] |= (t >> 4) << 6;
    }
  }
  put(row, {packed.begin(), packed.end()});
  for (int i = 0; i < 128; ++i) put(row, {(i * 7) & 0xFF});
  const std::vector<float> out = read(TensorType::Q4_K, row, 256);
  for (std::size_t i = 0; i < 256; ++i) {
    const auto j = static_cast<int>(i / 32);
    const int byte = (static_cast<int>(i / 64 * 32 + i % 32) * 7) & 0xFF;
    const int q = j % 2 == 0 ? byte & 15 : byte >> 4;
    CHECK(out[i] == 0.5F * static_cast<float>((7 * j + 5) * q) + 2.0F * static_cast<float>(63 - 8 * j));
  }
}

TEST_CASE("quants_q6_k_bit_pairs_and_scales") {
  std::array<int, 256> q{};
  for (std::size_t i = 0; i < 256; ++i) q[i] = static_cast<int>(i * 37 % 64);
  std::array<int, 128> low{};
  std::array<int, 64> high{};
  for (std::size_t i = 0; i < 256; ++i) {
    const std::size_t part = i / 128;
    const std::size_t run = i % 128 / 32;
    const std::size_t at = i % 32;
    low[64 * part + 32 * (run % 2) + at] |= (q[i] & 15) << (run < 2 ? 0 : 4);
    high[32 * part + at] |= (q[i] >> 4) << (2 * run);
  }
  Bytes row;
  put(row, {low.begin(), low.end()});
  put(row, {high.begin(), high.end()});
  for (int s = 0; s < 16; ++s) put(row, {s * 15 - 120});
  put(row, half);
  const std::vector<float> out = read(TensorType::Q6_K, row, 256);
  for (std::size_t i = 0; i < 256; ++i) {
    CHECK(out[i] == 0.5F * static_cast<float>((static_cast<int>(i / 16) * 15 - 120) * (q[i] - 32)));
  }
}

TEST_CASE("quants_refuse_what_they_cannot_read") {
  const Bytes bytes(1024);
  std::vector<float> out(33);
  CHECK_THROWS_WITH_AS(dequantize_row(TensorType::Q4_1, bytes.data(), out),
                       "a row of 33 values does not divide into Q4_1 blocks of 32", FileError);
  CHECK_THROWS_WITH_AS(dequantize_row(static_cast<TensorType>(99), bytes.data(), out), "tensor type 99 is not supported",
                       FileError);
  CHECK(read(TensorType::Q8_0, bytes, 0).empty());
}
