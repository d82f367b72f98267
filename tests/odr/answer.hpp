// SPDX-License-Identifier: Apache-2.0
// The same small attention, conversion and sampling, compiled into several files with different flags and linked into one
// program.
#pragma once

#include <tinyllm/attention/attend.hpp>
#include <tinyllm/attention/reference.hpp>
#include <tinyllm/cache/kv_view.hpp>
#include <tinyllm/sampling/sampler.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <numeric>
#include <type_traits>
#include <vector>

// Functions of this header are compiled with different flags too, so each file has its own.
namespace odr {
namespace {

/// Rounds rows to a storage type, each with its own scale if the type has them.
template <class Dtype>
void store(const std::vector<float>& numbers, tinyllm::Index d, std::vector<Dtype>& stored, std::vector<float>& scales,
           tinyllm::CpuLevel level) {
  if constexpr (std::same_as<Dtype, std::int8_t>) {
    for (std::size_t row = 0; row < scales.size(); ++row) {
      const std::size_t first = row * static_cast<std::size_t>(d);
      scales[row] = tinyllm::quantize(numbers.data() + first, 1, d, stored.data() + first, level);
    }
  } else {
    tinyllm::narrow(numbers.data(), static_cast<tinyllm::Index>(numbers.size()), stored.data(), level);
  }
}

/// What a level's results may differ from the reference by. Over int8 rows queries and weights are rounded too, and over
/// bfloat16 rows where the processor multiplies them.
template <class Dtype>
double allowed(tinyllm::CpuLevel level) {
  if (std::is_same_v<Dtype, std::int8_t>) return 1e-3;
  return std::is_same_v<Dtype, Eigen::bfloat16> && level == tinyllm::CpuLevel::avx512_bf16 ? 4e-3 : 1e-4;
}

/// The largest difference from the reference over levels up to `highest`, as a share of what is allowed; 1e30 for what is no
/// number.
template <class Dtype>
double worst_difference(tinyllm::CpuLevel highest) {
  using tinyllm::Index;
  constexpr Index rows = 700;
  constexpr Index d = 72;
  std::vector<float> numbers(static_cast<std::size_t>(2 * rows * d));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<float>(i * i % 7919));
  std::vector<Dtype> stored(numbers.size());
  std::vector<float> scales(static_cast<std::size_t>(2 * rows));
  double worst = 0;
  for (const tinyllm::CpuLevel level : tinyllm::cpu_levels) {
    if (level > highest || !tinyllm::runs(level)) continue;
    store(numbers, d, stored, scales, level);
    const tinyllm::RowAddress<Dtype> keys(stored.data(), scales.data());
    const tinyllm::KVView<Dtype> view(
        keys, keys.at(rows, d), rows,
        {.batch = 1, .n_heads = 1, .d_head = d, .batch_stride = rows * d, .head_stride = rows * d});
    for (const Index tokens : {Index{1}, Index{30}}) {
      std::vector<float> q(static_cast<std::size_t>(tokens * 4 * d));
      for (std::size_t i = 0; i < q.size(); ++i) q[i] = std::cos(static_cast<float>(i));
      std::vector<float> out(q.size());
      std::vector<float> expected(q.size());
      tinyllm::AttendWorkspace workspace;
      const tinyllm::ConstRows queries(q.data(), tokens, 4 * d, 4 * d);
      tinyllm::attend(view, queries, {out.data(), tokens, 4 * d, 4 * d}, workspace, {.level = level});
      tinyllm::reference_attention(view, queries, {expected.data(), tokens, 4 * d, 4 * d});
      for (std::size_t i = 0; i < q.size(); ++i) {
        const double difference = std::abs(static_cast<double>(out[i]) - static_cast<double>(expected[i]));
        worst = std::isfinite(difference) ? std::max(worst, difference / allowed<Dtype>(level)) : 1e30;
      }
    }
  }
  return worst;
}

/// Draws by Sampler that plain loops in double would have made otherwise, over levels up to `highest`.
int wrong_draws(tinyllm::CpuLevel highest) {
  std::vector<float> logits(5000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = 6.0F * std::sin(static_cast<float>(i * i % 7919));
  std::vector<tinyllm::TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](tinyllm::TokenId id) { return static_cast<double>(logits[static_cast<std::size_t>(id)]); };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return logit(a) > logit(b); });
  constexpr double top_p = 0.75;
  double all = 0;
  for (const tinyllm::TokenId id : order) all += std::exp(logit(id));
  double kept = 0;
  std::size_t n = 0;
  while (kept < top_p * all) kept += std::exp(logit(order[n++]));
  std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n));

  int wrong = 0;
  for (const tinyllm::CpuLevel level : tinyllm::cpu_levels) {
    if (level > highest || !tinyllm::runs(level)) continue;
    tinyllm::Sampler sampler({.temperature = 1.0F, .top_p = static_cast<float>(top_p)}, level);
    tinyllm::Rng rng = tinyllm::request_rng(1);
    tinyllm::Rng same = tinyllm::request_rng(1);
    for (int i = 0; i < 100; ++i) {
      double rest = tinyllm::uniform(same) * kept;
      std::size_t expected = 0;
      while (expected + 1 < n && rest >= std::exp(logit(order[expected]))) rest -= std::exp(logit(order[expected++]));
      if (sampler.sample(logits, {}, rng, {}).id != order[expected]) ++wrong;
    }
  }
  return wrong;
}

/// The worst error as a share of what is allowed: up to 1 is right.
double worst_of_all(tinyllm::CpuLevel highest) {
  return std::max({worst_difference<float>(highest), worst_difference<Eigen::half>(highest),
                   worst_difference<Eigen::bfloat16>(highest), worst_difference<std::int8_t>(highest),
                   wrong_draws(highest) > 0 ? 1e30 : 0.0});
}

}  // namespace
}  // namespace odr
