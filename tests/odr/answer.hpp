// SPDX-License-Identifier: Apache-2.0
// The same small attention and conversion, compiled into several files with different flags and linked into one program.
#pragma once

#include <tinyllm/attention/attend.hpp>
#include <tinyllm/attention/reference.hpp>
#include <tinyllm/cache/kv_view.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

// Functions of this header are compiled with different flags too, so each file has its own.
namespace odr {
namespace {

/// The largest difference from the reference over levels up to `highest`; 1e30 for what is no number.
template <class Dtype>
double worst_difference(tinyllm::CpuLevel highest) {
  using tinyllm::Index;
  constexpr Index rows = 700;
  constexpr Index d = 72;
  std::vector<float> numbers(static_cast<std::size_t>(2 * rows * d));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<float>(i * i % 7919));
  std::vector<Dtype> stored(numbers.size());
  double worst = 0;
  for (const tinyllm::CpuLevel level : tinyllm::cpu_levels) {
    if (level > highest || !tinyllm::runs(level)) continue;
    tinyllm::narrow(numbers.data(), 2 * rows * d, stored.data(), level);
    const tinyllm::KVView<Dtype> view(
        stored.data(), stored.data() + rows * d, rows,
        {.batch = 1, .n_heads = 1, .d_head = d, .batch_stride = rows * d, .head_stride = rows * d});
    for (const Index tokens : {Index{1}, Index{30}}) {
      std::vector<float> q(static_cast<std::size_t>(tokens * 3 * d));
      for (std::size_t i = 0; i < q.size(); ++i) q[i] = std::cos(static_cast<float>(i));
      std::vector<float> out(q.size());
      std::vector<float> expected(q.size());
      tinyllm::AttendWorkspace workspace;
      const tinyllm::ConstRows queries(q.data(), tokens, 3 * d, 3 * d);
      tinyllm::attend(view, queries, {out.data(), tokens, 3 * d, 3 * d}, workspace, {.level = level});
      tinyllm::reference_attention(view, queries, {expected.data(), tokens, 3 * d, 3 * d});
      for (std::size_t i = 0; i < q.size(); ++i) {
        const double difference = std::abs(static_cast<double>(out[i]) - static_cast<double>(expected[i]));
        worst = std::isfinite(difference) ? std::max(worst, difference) : 1e30;
      }
    }
  }
  return worst;
}

double worst_of_all(tinyllm::CpuLevel highest) {
  return std::max(
      {worst_difference<float>(highest), worst_difference<Eigen::half>(highest), worst_difference<Eigen::bfloat16>(highest)});
}

}  // namespace
}  // namespace odr
