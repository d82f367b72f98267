// SPDX-License-Identifier: Apache-2.0
// Merging attention over two sets of keys into attention over both, by their log-sum-exps.
//
//     // out and lse hold attention over one part of the keys, more and more_lse over the rest:
//     tinyllm::merge_by_log_sum_exp(out, lse, more, more_lse);        // now out and lse are over all of them
//
// Units: natural logarithms, as `AttendOptions::log_sum_exp` gives them. A part without keys has -inf and changes nothing.
// Source: "Self-attention Does Not Need O(n²) Memory", Rabe and Staats 2021
#pragma once

#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

#include <cmath>
#include <limits>
#include <span>
#include <stdexcept>

namespace tinyllm {

/// Merges `more` into `out`, one output of one query and head.
/// Shape: out and more are [d]
/// Throws: std::invalid_argument if the widths differ.
inline void merge_by_log_sum_exp(std::span<float> out, float& log_sum_exp, std::span<const float> more,
                                 float more_log_sum_exp) {
  if (out.size() != more.size()) {
    throw std::invalid_argument(detail::message("merge_by_log_sum_exp: outputs of ", out.size(), " and ", more.size()));
  }
  constexpr float nothing = -std::numeric_limits<float>::infinity();
  if (more_log_sum_exp == nothing) return;
  if (log_sum_exp == nothing) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = more[i];
    log_sum_exp = more_log_sum_exp;
    return;
  }
  // The difference, not the terms, is exponentiated: sums of exponentials may be far beyond any float.
  const double difference = static_cast<double>(more_log_sum_exp) - static_cast<double>(log_sum_exp);
  const double smaller = std::exp(-std::abs(difference));
  const double of_more = (difference > 0 ? 1.0 : smaller) / (1.0 + smaller);
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<float>((1.0 - of_more) * static_cast<double>(out[i]) + of_more * static_cast<double>(more[i]));
  }
  const double larger = difference > 0 ? static_cast<double>(more_log_sum_exp) : static_cast<double>(log_sum_exp);
  log_sum_exp = static_cast<float>(larger + std::log1p(smaller));
}

}  // namespace tinyllm
