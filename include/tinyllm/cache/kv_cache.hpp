// SPDX-License-Identifier: Apache-2.0
// KVCache: the keys and values of every layer, contiguous and preallocated.
//
//     KVCache<Eigen::half> cache({.n_layers = 30, .n_kv_heads = 3, .d_head = 64, .max_len = 8192});
//     Positions positions = cache.positions(T);                 // once, before the pass
//     KVView<Eigen::half> past = cache.update(layer, k, v);     // in each layer: past and new alike, as stored
//
// Layout: [layer][batch][kv head][position][d], keys and values apart, 64-byte aligned. Memory is reserved at construction;
// pages are touched as they fill. Nothing at or past a fill count is ever read. Errors leave the cache bit-identical.
// Threads: const members may run on several threads at once.
#pragma once

#include <tinyllm/cache/cache_stats.hpp>
#include <tinyllm/cache/chunk_view.hpp>
#include <tinyllm/cache/fill_counts.hpp>
#include <tinyllm/cache/kv_view.hpp>
#include <tinyllm/cache/store_chunk.hpp>
#include <tinyllm/core/aligned_buffer.hpp>
#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

#include <cstring>

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
        layer_size_(checked_product({dims.batch, dims.n_kv_heads, dims.max_len, dims.d_head})),
        // Both halves at once, so that nbytes() is known to fit.
        half_(checked_product({2, dims.n_layers, layer_size_, sizeof(Dtype)}) / (2 * Index{sizeof(Dtype)})),
        storage_(2 * half_),
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
    const Index first = fill_.reserve(layer, k.shape().tokens) * dims_.d_head;
    const ChunkStrides to{.batch = dims_.n_kv_heads * head_size(), .head = head_size(), .token = dims_.d_head};
    stats_.overflowed += detail::store_chunk(k, keys(layer) + first, to);
    stats_.overflowed += detail::store_chunk(v, values(layer) + first, to);
    fill_.advance(layer, k.shape().tokens);
    return view(layer);
  }

  /// All that a layer holds.
  /// Throws: std::out_of_range if there is no such layer.
  /// Invalidates: the view ends with the next truncate, move or destruction
  KVView<Dtype> view(Index layer) const {
    const Index rows = fill_.of(layer);
    return {keys(layer),
            values(layer),
            rows,
            {.batch = dims_.batch,
             .n_heads = dims_.n_kv_heads,
             .d_head = dims_.d_head,
             .batch_stride = dims_.n_kv_heads * head_size(),
             .head_stride = head_size()}};
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

  /// Bytes reserved: 2·L·B·H_kv·N·d·sizeof(Dtype).
  std::size_t nbytes() const { return static_cast<std::size_t>(2 * half_) * sizeof(Dtype); }
  Index capacity() const { return dims_.max_len; }
  const CacheDims& dims() const { return dims_; }
  const CacheStats& stats() const { return stats_; }

  /// A deep copy.
  /// Cost: copies the filled rows; reserves as much again
  KVCache clone() const {
    KVCache copy(dims_);
    for (Index layer = 0; layer < dims_.n_layers; ++layer) {
      const Index heads = dims_.batch * dims_.n_kv_heads;
      const auto filled = static_cast<std::size_t>(fill_.of(layer) * dims_.d_head) * sizeof(Dtype);
      for (Index head = 0; head < heads; ++head) {
        std::memcpy(copy.keys(layer) + head * head_size(), keys(layer) + head * head_size(), filled);
        std::memcpy(copy.values(layer) + head * head_size(), values(layer) + head * head_size(), filled);
      }
    }
    copy.fill_ = fill_;
    copy.stats_ = stats_;
    return copy;
  }

 private:
  Index head_size() const { return dims_.max_len * dims_.d_head; }
  Dtype* keys(Index layer) { return storage_.data() + layer * layer_size_; }
  const Dtype* keys(Index layer) const { return storage_.data() + layer * layer_size_; }
  Dtype* values(Index layer) { return keys(layer) + half_; }
  const Dtype* values(Index layer) const { return keys(layer) + half_; }

  CacheDims dims_;
  Index layer_size_;  // elements of one layer's keys
  Index half_;        // elements of all keys; the values follow
  AlignedBuffer<Dtype> storage_;
  FillCounts fill_;
  CacheStats stats_;
};

}  // namespace tinyllm
