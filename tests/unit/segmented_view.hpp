// SPDX-License-Identifier: Apache-2.0
// SegmentedView: keys and values of some sequences cut into segments of equal length, with not-a-number behind each.
//
//     SegmentedView<Eigen::half> view({.batch = 1, .n_heads = 2, .rows = 100, .d = 64, .segment_rows = 16}, random);
//
// Keys are normal numbers around 0 and values around 1, so that a mix-up shows. A read behind a segment's rows shows too.
#pragma once

#include <tinyllm/cache/kv_view.hpp>
#include <tinyllm/core/types.hpp>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

namespace test_support {

using tinyllm::Index;

struct ViewShape {
  Index batch;
  Index n_heads;
  Index rows;
  Index d;
  Index segment_rows;
};

template <class Dtype>
class SegmentedView {
 public:
  SegmentedView(const ViewShape& shape, std::mt19937& random) : SegmentedView(shape) {
    std::normal_distribution<float> numbers;
    for_each([&](std::size_t at, Index, Index) {
      keys_[at] = Dtype(numbers(random));
      values_[at] = Dtype(numbers(random) + 1.0F);
    });
  }

  Index rows() const { return shape_.rows; }
  Index batch() const { return shape_.batch; }
  Index n_heads() const { return shape_.n_heads; }
  Index d_head() const { return shape_.d; }
  Index segment_rows() const { return shape_.segment_rows; }
  Index n_segments() const { return (shape_.rows + shape_.segment_rows - 1) / shape_.segment_rows; }
  tinyllm::KVSegment<Dtype> segment(Index b, Index h, Index i) const {
    const std::size_t first = at(b, h, i * shape_.segment_rows, 0);
    return {keys_.data() + first, values_.data() + first, std::min(shape_.segment_rows, shape_.rows - i * shape_.segment_rows)};
  }

  /// Sets every key to f(row, column).
  template <class F>
  void fill_keys(F f) {
    for_each([&](std::size_t at, Index row, Index c) { keys_[at] = Dtype(f(row, c)); });
  }
  /// Sets every value to f(row, column).
  template <class F>
  void fill_values(F f) {
    for_each([&](std::size_t at, Index row, Index c) { values_[at] = Dtype(f(row, c)); });
  }
  /// Sets a position's keys and values, in every head.
  void set_row(Index row, float number) {
    for_each([&](std::size_t at, Index r, Index) {
      if (r == row) keys_[at] = values_[at] = Dtype(number);
    });
  }
  /// The same numbers in segments of another length.
  SegmentedView cut(Index segment_rows) const {
    ViewShape shape = shape_;
    shape.segment_rows = segment_rows;
    SegmentedView copy(shape);
    for (Index b = 0; b < shape.batch; ++b) {
      for (Index h = 0; h < shape.n_heads; ++h) {
        for (Index row = 0; row < shape.rows; ++row) {
          for (Index c = 0; c < shape.d; ++c) {
            copy.keys_[copy.at(b, h, row, c)] = keys_[at(b, h, row, c)];
            copy.values_[copy.at(b, h, row, c)] = values_[at(b, h, row, c)];
          }
        }
      }
    }
    return copy;
  }

 private:
  explicit SegmentedView(const ViewShape& shape) : shape_(shape) {
    const Index elements = shape.batch * shape.n_heads * n_segments() * (shape.segment_rows + 1) * shape.d;
    keys_.assign(static_cast<std::size_t>(elements), Dtype(std::numeric_limits<float>::quiet_NaN()));
    values_ = keys_;
  }

  std::size_t at(Index b, Index h, Index row, Index c) const {
    const Index segment = (b * shape_.n_heads + h) * n_segments() + row / shape_.segment_rows;
    return static_cast<std::size_t>((segment * (shape_.segment_rows + 1) + row % shape_.segment_rows) * shape_.d + c);
  }

  template <class F>
  void for_each(F f) const {
    for (Index b = 0; b < shape_.batch; ++b) {
      for (Index h = 0; h < shape_.n_heads; ++h) {
        for (Index row = 0; row < shape_.rows; ++row) {
          for (Index c = 0; c < shape_.d; ++c) f(at(b, h, row, c), row, c);
        }
      }
    }
  }

  ViewShape shape_;
  std::vector<Dtype> keys_;
  std::vector<Dtype> values_;
};

}  // namespace test_support
