// SPDX-License-Identifier: Apache-2.0
// The reference attention: plain loops in double that say what `attend` computes, to test kernels against.
//
//     tinyllm::reference_attention(view, q, expected);
//     tinyllm::reference_attention(view, q, expected, {.window = 128, .log_sum_exp = lse.data()});
//
// Shapes, options and errors are those of `attend`; `exactness` and `level` change nothing here.
#pragma once

#include <tinyllm/attention/attendable.hpp>
#include <tinyllm/core/types.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace tinyllm {

namespace attention_detail {

/// A stored row, times its scale if it has one.
template <class Dtype>
std::vector<double> row_in_double(const Dtype* rows, const float* scales, Index row, Index stride, Index d) {
  const double scale = scales == nullptr ? 1.0 : static_cast<double>(scales[row]);
  std::vector<double> numbers(static_cast<std::size_t>(d));
  for (std::size_t c = 0; c < numbers.size(); ++c) {
    numbers[c] = scale * static_cast<double>(static_cast<float>(rows[static_cast<std::size_t>(row * stride) + c]));
  }
  return numbers;
}

}  // namespace attention_detail

/// out = softmax(scale · q · Kᵀ) · V over the keys that each query sees; zeros where there is none.
/// Shape: q and out are [B·T, H_q·d]; H_q is a multiple of the view's kv heads
/// Throws: std::invalid_argument if the shapes do not fit.
/// Cost: O(B·T·H_q·rows·d), slow; allocates
template <Attendable View>
void reference_attention(const View& view, const ConstRows& q, const Rows& out, const AttendOptions& options = {}) {
  const attention_detail::AttendShape shape = attention_detail::attend_shape(view, q, out, options);
  const Index d = shape.d;
  const double scale = options.scale ? static_cast<double>(*options.scale) : 1.0 / std::sqrt(static_cast<double>(d));
  std::vector<std::vector<double>> keys;
  std::vector<std::vector<double>> values;
  std::vector<double> scores;
  std::vector<double> sums(static_cast<std::size_t>(shape.d_value));
  for (Index b = 0; b < shape.batch; ++b) {
    for (Index head = 0; head < shape.n_heads(); ++head) {
      keys.clear();
      values.clear();
      for (Index i = 0; i < view.n_segments(); ++i) {
        const auto segment = view.segment(b, head / shape.group, i);
        const float* key_scales = nullptr;
        const float* value_scales = nullptr;
        if constexpr (std::same_as<StoredType<View>, std::int8_t>) {
          key_scales = segment.key_scales;
          value_scales = segment.value_scales;
        }
        for (Index row = 0; row < segment.rows; ++row) {
          keys.push_back(attention_detail::row_in_double(segment.keys, key_scales, row, shape.row, d));
          values.push_back(attention_detail::row_in_double(segment.values, value_scales, row, shape.row, shape.d_value));
        }
      }
      for (Index t = 0; t < shape.tokens; ++t) {
        const Index end = std::clamp<Index>(shape.query_offset + t + 1, 0, static_cast<Index>(keys.size()));
        const Index first = std::max<Index>(shape.query_offset + t + 1 - shape.window, 0);
        const Index row = b * shape.tokens + t;
        const float* query = q.data + row * q.stride + head * d;
        scores.clear();
        double highest = -std::numeric_limits<double>::infinity();
        for (Index j = first; j < end; ++j) {
          double score = 0;
          for (Index c = 0; c < d; ++c) {
            score += static_cast<double>(query[c]) * keys[static_cast<std::size_t>(j)][static_cast<std::size_t>(c)];
          }
          scores.push_back(score * scale);
          highest = std::max(highest, scores.back());
        }
        double total = 0;
        std::fill(sums.begin(), sums.end(), 0.0);
        for (std::size_t j = 0; j < scores.size(); ++j) {
          const double weight = std::exp(scores[j] - highest);
          total += weight;
          const std::vector<double>& value = values[static_cast<std::size_t>(first) + j];
          for (std::size_t c = 0; c < sums.size(); ++c) sums[c] += weight * value[c];
        }
        float* result = out.data + row * out.stride + head * shape.d_value;
        for (std::size_t c = 0; c < sums.size(); ++c) result[c] = scores.empty() ? 0.0F : static_cast<float>(sums[c] / total);
        if (options.log_sum_exp != nullptr) {
          options.log_sum_exp[row * shape.n_heads() + head] = static_cast<float>(highest + std::log(total));
        }
      }
    }
  }
}

}  // namespace tinyllm
