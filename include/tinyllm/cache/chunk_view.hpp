// SPDX-License-Identifier: Apache-2.0
// ChunkView: float keys or values of the positions that one forward pass computes, read where they lie.
//
//     ChunkView k = ChunkView::from_projection(x, n_kv_heads);       // x: [T, H·d], any Eigen matrix, not copied
//     ChunkView v(pointer, {.batch = 1, .heads = 3, .tokens = T, .d = 64});   // [B, H, T, d], one after the other
//
// A view does not own: the memory must outlive the call that it is passed to.
#pragma once

#include <tinyllm/core/aligned_buffer.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

#include <type_traits>

namespace tinyllm {

/// Shape of a chunk: [batch, heads, tokens, d].
struct ChunkShape {
  Index batch = 1;
  Index heads = 1;
  Index tokens = 1;
  Index d = 1;
  friend bool operator==(const ChunkShape&, const ChunkShape&) = default;
};

/// Distance between neighbours along each axis of a chunk.
/// Units: elements
struct ChunkStrides {
  Index batch = 0;
  Index head = 0;
  Index token = 0;
  Index element = 1;
};

/// A strided, read-only float view.
/// Shape: [batch, heads, tokens, d]
/// Threads: as const float data
class ChunkView {
 public:
  /// Views `[B, H, T, d]` floats that lie one after the other.
  /// Throws: std::invalid_argument for a null pointer or a size below 1, std::length_error if the sizes' product overflows.
  ChunkView(const float* data, ChunkShape shape) : ChunkView(data, shape, contiguous(shape)) {}

  /// Views floats at the given distances, in elements.
  /// Throws: std::invalid_argument for a null pointer or a size below 1.
  ChunkView(const float* data, ChunkShape shape, ChunkStrides strides) : data_(data), shape_(shape), strides_(strides) {
    if (data == nullptr) throw std::invalid_argument("chunk: the data pointer is null");
    if (shape.batch < 1 || shape.heads < 1 || shape.tokens < 1 || shape.d < 1) {
      throw std::invalid_argument(detail::message("chunk: every size of [B, H, T, d] = [", shape.batch, ", ", shape.heads, ", ",
                                                  shape.tokens, ", ", shape.d, "] must be at least 1"));
    }
  }

  /// Views the output of a key or value projection, head beside head, in whichever storage order the matrix has.
  /// Shape: x is [B·T, H·d], sequence after sequence
  /// Throws: std::invalid_argument if the sizes do not divide, or are zero.
  template <class Derived>
  static ChunkView from_projection(const Eigen::DenseBase<Derived>& x, Index heads, Index batch = 1) {
    static_assert(std::is_same_v<typename Derived::Scalar, float>,
                  "tinyllm: a chunk holds float values; the cache itself converts them to its storage type");
    static_assert((Derived::Flags & Eigen::DirectAccessBit) != 0,
                  "tinyllm: a chunk is read where it lies: pass a matrix, map or block, not an expression (call .eval())");
    if (heads < 1 || batch < 1 || x.rows() % batch != 0 || x.cols() % heads != 0) {
      throw std::invalid_argument(detail::message("chunk: a [", x.rows(), ", ", x.cols(), "] projection does not divide into ",
                                                  batch, " sequences of ", heads, " heads"));
    }
    const Derived& m = x.derived();
    const Index tokens = m.rows() / batch;
    const Index d = m.cols() / heads;
    return ChunkView(
        m.data(), {.batch = batch, .heads = heads, .tokens = tokens, .d = d},
        {.batch = tokens * m.rowStride(), .head = d * m.colStride(), .token = m.rowStride(), .element = m.colStride()});
  }

  const ChunkShape& shape() const { return shape_; }
  const ChunkStrides& strides() const { return strides_; }

  /// First element of a row; the others follow at `strides().element`.
  const float* row(Index batch, Index head, Index token) const {
    return data_ + batch * strides_.batch + head * strides_.head + token * strides_.token;
  }

 private:
  static ChunkStrides contiguous(const ChunkShape& shape) {
    static_cast<void>(checked_product({shape.batch, shape.heads, shape.tokens, shape.d}));
    return {.batch = shape.heads * shape.tokens * shape.d, .head = shape.tokens * shape.d, .token = shape.d};
  }

  const float* data_;
  ChunkShape shape_;
  ChunkStrides strides_;
};

}  // namespace tinyllm
