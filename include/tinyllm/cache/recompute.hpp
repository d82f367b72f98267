// SPDX-License-Identifier: Apache-2.0
// RecomputeCache: the cache mode "none": it keeps nothing from one pass to the next, so every pass must see all tokens.
//
//     RecomputeCache cache;                                     // no sizes: it holds one layer's chunk at a time
//     model.forward(all_ids, cache.positions(n), cache);        // n²/2 token-forwards for n tokens: the slow oracle
//
// `update` copies the chunk and shows it; its length is always 0. It shares no code with the caches that it checks.
#pragma once

#include <tinyllm/cache/causal_mask.hpp>
#include <tinyllm/cache/chunk_view.hpp>
#include <tinyllm/cache/kv_view.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

#include <limits>
#include <vector>

namespace tinyllm {

class RecomputeCache {
 public:
  using value_type = float;
  /// Tells `generate` to pass every known token to each forward call.
  static constexpr bool keeps_nothing = true;

  /// Shows the chunk, and it alone.
  /// Shape: k and v are [B, H_kv, T, d]
  /// Throws: std::invalid_argument if the shapes differ, std::out_of_range if the layer is negative.
  /// Invalidates: the view ends with the next update
  KVView<float> update(Index layer, const ChunkView& k, const ChunkView& v) {
    if (layer < 0) throw std::out_of_range(detail::message("layer ", layer, " does not exist"));
    if (k.shape() != v.shape()) throw std::invalid_argument("update: keys and values differ in shape");
    copy(k, keys_);
    copy(v, values_);
    const ChunkShape& shape = k.shape();
    return {keys_.data(),
            values_.data(),
            shape.tokens,
            {.batch = shape.batch,
             .n_heads = shape.heads,
             .d_head = shape.d,
             .batch_stride = shape.heads * shape.tokens * shape.d,
             .head_stride = shape.tokens * shape.d}};
  }

  Index seq_len() const { return 0; }
  /// Throws: std::invalid_argument if tokens < 1.
  Positions positions(Index tokens) const {
    if (tokens < 1) throw std::invalid_argument(detail::message("a pass has at least one token, not ", tokens));
    return {0, tokens};
  }
  CausalMask mask(Index tokens) const { return {positions(tokens).size(), 0}; }
  /// Throws: std::out_of_range unless n is 0, its only length.
  void truncate(Index n) {
    if (n != 0) throw std::out_of_range(detail::message("truncate: ", n, " is not in [0, 0]"));
  }
  Index capacity() const { return std::numeric_limits<Index>::max(); }
  /// Bytes held just now: one layer's chunk.
  std::size_t nbytes() const { return (keys_.size() + values_.size()) * sizeof(float); }

 private:
  static void copy(const ChunkView& chunk, std::vector<float>& rows) {
    const ChunkShape& shape = chunk.shape();
    rows.clear();
    for (Index b = 0; b < shape.batch; ++b) {
      for (Index h = 0; h < shape.heads; ++h) {
        for (Index t = 0; t < shape.tokens; ++t) {
          const float* row = chunk.row(b, h, t);
          for (Index i = 0; i < shape.d; ++i) rows.push_back(row[i * chunk.strides().element]);
        }
      }
    }
  }

  std::vector<float> keys_;
  std::vector<float> values_;
};

}  // namespace tinyllm
