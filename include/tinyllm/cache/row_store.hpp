// SPDX-License-Identifier: Apache-2.0
// RowStore: memory for stored rows of one width, each rounded once on its way in; with int8 a scale stands by every row.
//
//     RowStore<Eigen::half> keys(n_rows, d);
//     std::size_t overflowed = keys.store(row, floats, stride);
//     RowAddress<Eigen::half> first = keys.at(row);
//
// Memory is reserved at construction, 64-byte aligned; pages are touched as rows are written. Units: rows.
// Threads: writing different rows is safe on several threads.
#pragma once

#include <tinyllm/cache/chunk_view.hpp>
#include <tinyllm/cache/kv_view.hpp>
#include <tinyllm/core/aligned_buffer.hpp>
#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <type_traits>

namespace tinyllm {

template <StorageType Dtype>
class RowStore {
  static constexpr bool scaled = std::same_as<Dtype, std::int8_t>;

 public:
  /// Bytes of one row, its scale included.
  static constexpr Index row_nbytes(Index d) { return d * Index{sizeof(Dtype)} + (scaled ? Index{sizeof(float)} : 0); }

  /// Throws: std::invalid_argument for a size below 1, std::length_error if the bytes overflow, std::bad_alloc if the system
  ///   has no such address space.
  RowStore(Index rows, Index d) : d_(d), rows_(checked_rows(rows, d)), elements_(rows * d), scales_(rows) {}

  /// Bytes reserved.
  std::size_t nbytes() const { return static_cast<std::size_t>(rows_ * row_nbytes(d_)); }

  /// Rounds d floats, `stride` elements apart, into a row. Returns how many finite values became infinite.
  /// Pre: 0 <= row < rows
  std::size_t store(Index row, const float* source, Index stride) {
    Dtype* to = elements_.data() + row * d_;
    if constexpr (scaled) {
      scales_.data()[row] = quantize(source, stride, d_, to);
      return 0;
    } else {
      return store_row(source, stride, d_, to);
    }
  }

  /// Stores every row of a chunk: its first one at `row`, the others at these distances from it.
  /// Returns how many finite values became infinite.
  /// Units: strides in rows
  std::size_t store(Index row, const ChunkView& chunk, Index batch_stride, Index head_stride) {
    const ChunkShape& shape = chunk.shape();
    std::size_t overflowed = 0;
    for (Index b = 0; b < shape.batch; ++b) {
      for (Index h = 0; h < shape.heads; ++h) {
        const Index first = row + b * batch_stride + h * head_stride;
        for (Index t = 0; t < shape.tokens; ++t) {
          overflowed += store(first + t, chunk.row(b, h, t), chunk.strides().element);
        }
      }
    }
    return overflowed;
  }

  /// Copies n rows of another store of the same width, as they are.
  void copy(Index row, const RowStore& from, Index source, Index n) {
    if (n == 0) return;
    const auto count = static_cast<std::size_t>(n);
    std::memcpy(static_cast<void*>(elements_.data() + row * d_), from.elements_.data() + source * d_,
                count * static_cast<std::size_t>(d_) * sizeof(Dtype));
    if constexpr (scaled) std::memcpy(scales_.data() + row, from.scales_.data() + source, count * sizeof(float));
  }

  RowAddress<Dtype> at(Index row) const {
    if constexpr (scaled) {
      return {elements_.data() + row * d_, scales_.data() + row};
    } else {
      return {elements_.data() + row * d_};
    }
  }

 private:
  struct Nothing {
    explicit Nothing(Index) {}
  };

  static Index checked_rows(Index rows, Index d) {
    constexpr Index scale = scaled ? Index{sizeof(float)} : 0;
    const Index bytes = checked_product({d, sizeof(Dtype)});
    if (bytes > std::numeric_limits<Index>::max() - scale) throw std::length_error("a product of sizes overflows");
    static_cast<void>(checked_product({rows, bytes + scale}));
    return rows;
  }

  Index d_;
  Index rows_;
  AlignedBuffer<Dtype> elements_;                                                           // [rows, d]
  [[no_unique_address]] std::conditional_t<scaled, AlignedBuffer<float>, Nothing> scales_;  // [rows]
};

}  // namespace tinyllm
