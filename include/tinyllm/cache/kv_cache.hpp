// SPDX-License-Identifier: Apache-2.0
// KVCache: the keys and values of every layer, contiguous and preallocated.
//
//     KVCache<Eigen::half> cache({.n_layers = 30, .n_kv_heads = 3, .d_head = 64, .max_len = 8192});
//     Positions positions = cache.positions(T);                 // once, before the pass
//     KVView<Eigen::half> past = cache.update(layer, k, v);     // in each layer: past and new alike, as stored
//
// Layout: [layer][batch][kv head][position][d], keys and values apart, 64-byte aligned. Memory is reserved at construction;
// pages are touched as they fill. Nothing at or past a fill count is ever read. Errors leave the cache bit-identical.
// KVCache<std::int8_t> rounds each row (position and head) once, to integers times the row's own scale; what it holds is off
// by at most half a scale, 1/254 of the row's largest magnitude.
// Threads: const members may run on several threads at once.
#pragma once

#include <tinyllm/cache/cache_stats.hpp>
#include <tinyllm/cache/chunk_view.hpp>
#include <tinyllm/cache/fill_counts.hpp>
#include <tinyllm/cache/kv_view.hpp>
#include <tinyllm/cache/row_store.hpp>
#include <tinyllm/cache/store_chunk.hpp>
#include <tinyllm/core/aligned_buffer.hpp>
#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

namespace tinyllm {

/// What a cache is built for. All sizes are at least 1.
/// Units: max_len in positions
struct CacheDims {
  Index n_layers = 0;
  Index n_kv_heads = 0;
  Index d_head = 0;
  Index max_len = 0;
  Index batch = 1;
  friend bool operator==(const CacheDims&, const CacheDims&) = default;
};

template <StorageType Dtype = float>
class KVCache {
 public:
  using value_type = Dtype;

  /// Throws: std::invalid_argument for a size below 1, std::length_error for sizes whose product overflows,
  ///   std::bad_alloc if the system has no such address space.
  explicit KVCache(const CacheDims& dims)
      : dims_(dims),
        layer_rows_(checked_product({dims.batch, dims.n_kv_heads, dims.max_len})),
        rows_(checked_product({2, dims.n_layers, layer_rows_}), dims.d_head),
        fill_(dims.n_layers, dims.max_len) {}

  KVCache(KVCache&&) noexcept = default;
  KVCache& operator=(KVCache&&) noexcept = default;

  /// Copies a chunk in behind what this layer holds, rounds it to `Dtype`, and shows all that the layer holds then.
  /// Shape: k and v are [B, H_kv, T, d]
  /// Throws: std::out_of_range if there is no such layer, std::invalid_argument if a shape is wrong, CacheFull if T more
  ///   positions do not fit. Nothing changes then.
  /// Cost: O(B·H_kv·T·d), no allocation
  KVView<Dtype> update(Index layer, const ChunkView& k, const ChunkView& v) {
    detail::check_chunk(k, "keys", dims_.batch, dims_.n_kv_heads, dims_.d_head);
    detail::check_chunk(v, "values", dims_.batch, dims_.n_kv_heads, dims_.d_head);
    detail::check_same_tokens(k, v);
    const Index first = fill_.reserve(layer, k.shape().tokens);
    const Index sequence = dims_.n_kv_heads * dims_.max_len;
    stats_.overflowed += rows_.store(keys(layer) + first, k, sequence, dims_.max_len);
    stats_.overflowed += rows_.store(values(layer) + first, v, sequence, dims_.max_len);
    fill_.advance(layer, k.shape().tokens);
    return view(layer);
  }

  /// All that a layer holds.
  /// Throws: std::out_of_range if there is no such layer.
  /// Invalidates: the view ends with the next truncate, move or destruction
  KVView<Dtype> view(Index layer) const {
    const Index rows = fill_.of(layer);
    const Index head = dims_.max_len * dims_.d_head;
    return {rows_.at(keys(layer)),
            rows_.at(values(layer)),
            rows,
            {.batch = dims_.batch,
             .n_heads = dims_.n_kv_heads,
             .d_head = dims_.d_head,
             .batch_stride = dims_.n_kv_heads * head,
             .head_stride = head}};
  }

  /// Committed length: positions that every layer holds. It moves only after the last layer's update.
  Index seq_len() const { return fill_.committed(); }
  /// Positions that one layer holds.
  /// Throws: std::out_of_range if there is no such layer.
  Index seq_len(Index layer) const { return fill_.of(layer); }

  /// The absolute positions [s, s + T) of the next T tokens.
  /// Throws: std::invalid_argument if T < 1.
  Positions positions(Index tokens) const { return fill_.positions(tokens); }
  /// What the next T tokens may see.
  /// Shape: [T, s + T]
  /// Throws: std::invalid_argument if T < 1.
  CausalMask mask(Index tokens) const { return fill_.mask(tokens); }

  /// Forgets all positions from `n` on, in every layer; `truncate(seq_len())` mends a pass that died half-way.
  /// Throws: std::out_of_range if n < 0 or n > seq_len(); nothing changes then.
  /// Cost: O(L), frees and copies nothing
  void truncate(Index n) { fill_.truncate(n); }
  /// Forgets everything.
  void clear() { fill_.truncate(0); }

  /// Bytes reserved: 2·L·B·H_kv·N·d·sizeof(Dtype), and for int8 four more a row, 2·L·B·H_kv·N·(d + 4).
  std::size_t nbytes() const { return rows_.nbytes(); }
  Index capacity() const { return dims_.max_len; }
  const CacheDims& dims() const { return dims_; }
  const CacheStats& stats() const { return stats_; }

  /// A deep copy.
  /// Cost: copies the filled rows; reserves as much again
  KVCache clone() const {
    KVCache copy(dims_);
    for (Index layer = 0; layer < dims_.n_layers; ++layer) {
      const Index heads = dims_.batch * dims_.n_kv_heads;
      for (Index head = 0; head < heads; ++head) {
        for (const Index part : {keys(layer), values(layer)}) {
          const Index row = part + head * dims_.max_len;
          copy.rows_.copy(row, rows_, row, fill_.of(layer));
        }
      }
    }
    copy.fill_ = fill_;
    copy.stats_ = stats_;
    return copy;
  }

 private:
  // The first row of a layer's keys or values; heads follow max_len apart.
  Index keys(Index layer) const { return layer * layer_rows_; }
  Index values(Index layer) const { return (dims_.n_layers + layer) * layer_rows_; }

  CacheDims dims_;
  Index layer_rows_;  // rows of one layer's keys
  RowStore<Dtype> rows_;
  FillCounts fill_;
  CacheStats stats_;
};

}  // namespace tinyllm
