// SPDX-License-Identifier: Apache-2.0
// SegmentedView: keys and values of some sequences cut into segments of equal length, with not-a-number behind each.
//
//     SegmentedView<Eigen::half> view({.batch = 1, .n_heads = 2, .rows = 100, .d = 64, .segment_rows = 16}, random);
//
// Keys are normal numbers around 0 and values around 1, so that a mix-up shows. A read behind a segment's rows shows too. Rows
// of int8 are rounded as a cache rounds them.
#pragma once

#include <tinyllm/cache/kv_view.hpp>
#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/types.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
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
    fill(keys_, [&](Index, Index) { return numbers(random); });
    fill(values_, [&](Index, Index) { return numbers(random) + 1.0F; });
  }

  Index rows() const { return shape_.rows; }
  Index batch() const { return shape_.batch; }
  Index n_heads() const { return shape_.n_heads; }
  Index d_head() const { return shape_.d; }
  Index segment_rows() const { return shape_.segment_rows; }
  Index n_segments() const { return (shape_.rows + shape_.segment_rows - 1) / shape_.segment_rows; }
  tinyllm::KVSegment<Dtype> segment(Index b, Index h, Index i) const {
    const std::size_t first = at(b, h, i * shape_.segment_rows);
    const std::size_t element = first * static_cast<std::size_t>(shape_.d);
    return {keys_.elements.data() + element, values_.elements.data() + element,
            std::min(shape_.segment_rows, shape_.rows - i * shape_.segment_rows), keys_.scales.data() + first,
            values_.scales.data() + first};
  }

  /// Sets every key to f(row, column).
  template <class F>
  void fill_keys(F f) {
    fill(keys_, f);
  }
  /// Sets every value to f(row, column).
  template <class F>
  void fill_values(F f) {
    fill(values_, f);
  }
  /// Sets a position's keys and values, in every head.
  void set_row(Index row, float number) {
    const std::vector<float> numbers(static_cast<std::size_t>(shape_.d), number);
    for_each_row([&](std::size_t to, Index r) {
      if (r == row) {
        put(keys_, to, numbers);
        put(values_, to, numbers);
      }
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
          copy_row(keys_, at(b, h, row), copy.keys_, copy.at(b, h, row));
          copy_row(values_, at(b, h, row), copy.values_, copy.at(b, h, row));
        }
      }
    }
    return copy;
  }

 private:
  struct Stored {
    std::vector<Dtype> elements;
    std::vector<float> scales;  // of int8 rows
  };

  explicit SegmentedView(const ViewShape& shape) : shape_(shape) {
    const auto rows = static_cast<std::size_t>(shape.batch * shape.n_heads * n_segments() * (shape.segment_rows + 1));
    const std::vector<float> nothing(static_cast<std::size_t>(shape.d), std::numeric_limits<float>::quiet_NaN());
    keys_ = {std::vector<Dtype>(rows * nothing.size()), std::vector<float>(rows)};
    for (std::size_t row = 0; row < rows; ++row) put(keys_, row, nothing);
    values_ = keys_;
  }

  std::size_t at(Index b, Index h, Index row) const {
    const Index segment = (b * shape_.n_heads + h) * n_segments() + row / shape_.segment_rows;
    return static_cast<std::size_t>(segment * (shape_.segment_rows + 1) + row % shape_.segment_rows);
  }

  void put(Stored& stored, std::size_t row, const std::vector<float>& numbers) const {
    Dtype* to = stored.elements.data() + row * numbers.size();
    if constexpr (std::is_same_v<Dtype, std::int8_t>) {
      stored.scales[row] = tinyllm::quantize(numbers.data(), 1, shape_.d, to);
    } else {
      for (std::size_t c = 0; c < numbers.size(); ++c) to[c] = Dtype(numbers[c]);
    }
  }

  void copy_row(const Stored& from, std::size_t row, Stored& to, std::size_t to_row) const {
    const auto d = static_cast<std::size_t>(shape_.d);
    for (std::size_t c = 0; c < d; ++c) to.elements[to_row * d + c] = from.elements[row * d + c];
    to.scales[to_row] = from.scales[row];
  }

  template <class F>
  void fill(Stored& stored, F f) {
    std::vector<float> numbers(static_cast<std::size_t>(shape_.d));
    for_each_row([&](std::size_t to, Index row) {
      for (Index c = 0; c < shape_.d; ++c) numbers[static_cast<std::size_t>(c)] = f(row, c);
      put(stored, to, numbers);
    });
  }

  template <class F>
  void for_each_row(F f) const {
    for (Index b = 0; b < shape_.batch; ++b) {
      for (Index h = 0; h < shape_.n_heads; ++h) {
        for (Index row = 0; row < shape_.rows; ++row) f(at(b, h, row), row);
      }
    }
  }

  ViewShape shape_;
  Stored keys_;
  Stored values_;
};

}  // namespace test_support
