// SPDX-License-Identifier: Apache-2.0
// Copying a chunk into a cache's rows, rounded to the type that they are stored in.
//
//     std::size_t overflowed = detail::store_chunk(chunk, rows, {.batch = ..., .head = ..., .token = d});
#pragma once

#include <tinyllm/cache/chunk_view.hpp>
#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

#include <cstddef>

namespace tinyllm::detail {

/// Stores every row of a chunk at the given distances from `rows`, where its first row goes.
/// Returns how many finite values became infinite.
/// Units: strides in elements of Dtype; `element` must be 1
template <FloatStorageType Dtype>
std::size_t store_chunk(const ChunkView& chunk, Dtype* rows, const ChunkStrides& to) {
  const ChunkShape& shape = chunk.shape();
  std::size_t overflowed = 0;
  for (Index b = 0; b < shape.batch; ++b) {
    for (Index h = 0; h < shape.heads; ++h) {
      Dtype* row = rows + b * to.batch + h * to.head;
      for (Index t = 0; t < shape.tokens; ++t, row += to.token) {
        overflowed += store_row(chunk.row(b, h, t), chunk.strides().element, shape.d, row);
      }
    }
  }
  return overflowed;
}

/// Throws: std::invalid_argument if a chunk is not [batch, heads, T, d], naming it and both shapes.
inline void check_chunk(const ChunkView& chunk, const char* what, Index batch, Index heads, Index d) {
  const ChunkShape& shape = chunk.shape();
  if (shape.batch != batch || shape.heads != heads || shape.d != d) {
    throw std::invalid_argument(message("update: ", what, " [B, H, T, d] = [", shape.batch, ", ", shape.heads, ", ",
                                        shape.tokens, ", ", shape.d, "] where the cache has [", batch, ", ", heads, ", T, ", d,
                                        "]"));
  }
}

/// Throws: std::invalid_argument unless both chunks have as many tokens.
inline void check_same_tokens(const ChunkView& a, const ChunkView& b) {
  if (a.shape().tokens != b.shape().tokens) {
    throw std::invalid_argument(message("update: the chunks have ", a.shape().tokens, " and ", b.shape().tokens, " tokens"));
  }
}

}  // namespace tinyllm::detail
