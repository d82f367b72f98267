// SPDX-License-Identifier: Apache-2.0
// LatentCache: the cache of multi-head latent attention: one compressed latent and one shared rotary key a position.
//
//     LatentCache<Eigen::bfloat16> cache({.n_layers = 61, .d_latent = 512, .d_rope = 64, .max_len = 8192});
//     LatentView<Eigen::bfloat16> past = cache.update(layer, c, k_rope);     // c: [B, 1, T, r], k_rope: [B, 1, T, d_R]
//
// The rules are those of KVCache. Layout: [layer][batch][position][c | k_rope], 64-byte aligned.
// Source: DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model", 2024, section 2.1.
// Threads: const members may run on several threads at once.
#pragma once

#include <tinyllm/cache/cache_stats.hpp>
#include <tinyllm/cache/chunk_view.hpp>
#include <tinyllm/cache/fill_counts.hpp>
#include <tinyllm/cache/latent_view.hpp>
#include <tinyllm/cache/store_chunk.hpp>
#include <tinyllm/core/aligned_buffer.hpp>
#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

#include <cstring>

namespace tinyllm {

/// What a latent cache is built for. All sizes are at least 1.
/// Units: max_len in positions
struct LatentDims {
  Index n_layers = 0;
  Index d_latent = 0;  ///< r, `kv_lora_rank` in Hugging Face
  Index d_rope = 0;    ///< d_R, `qk_rope_head_dim` in Hugging Face
  Index max_len = 0;
  Index batch = 1;
  friend bool operator==(const LatentDims&, const LatentDims&) = default;
};

template <FloatStorageType Dtype = float>
class LatentCache {
 public:
  using value_type = Dtype;

  /// Throws: std::invalid_argument for a size below 1, std::length_error for sizes whose product overflows,
  ///   std::bad_alloc if the system has no such address space.
  explicit LatentCache(const LatentDims& dims)
      : dims_(dims), storage_(count_elements(dims)), fill_(dims.n_layers, dims.max_len) {}

  LatentCache(LatentCache&&) noexcept = default;
  LatentCache& operator=(LatentCache&&) noexcept = default;

  /// Copies a chunk in behind what this layer holds, rounds it to `Dtype`, and shows all that the layer holds then.
  /// Shape: c is [B, 1, T, r], k_rope is [B, 1, T, d_R]
  /// Throws: std::out_of_range if there is no such layer, std::invalid_argument if a shape is wrong, CacheFull if T more
  ///   positions do not fit. Nothing changes then.
  /// Cost: O(B·T·(r + d_R)), no allocation
  LatentView<Dtype> update(Index layer, const ChunkView& c, const ChunkView& k_rope) {
    detail::check_chunk(c, "latents", dims_.batch, 1, dims_.d_latent);
    detail::check_chunk(k_rope, "rotary keys", dims_.batch, 1, dims_.d_rope);
    detail::check_same_tokens(c, k_rope);
    Dtype* row = rows(layer) + fill_.reserve(layer, c.shape().tokens) * row_size();
    const ChunkStrides to{.batch = sequence_size(), .head = 0, .token = row_size()};
    stats_.overflowed += detail::store_chunk(c, row, to);
    stats_.overflowed += detail::store_chunk(k_rope, row + dims_.d_latent, to);
    fill_.advance(layer, c.shape().tokens);
    return view(layer);
  }

  /// All that a layer holds.
  /// Throws: std::out_of_range if there is no such layer.
  /// Invalidates: the view ends with the next truncate, move or destruction
  LatentView<Dtype> view(Index layer) const {
    const Index filled = fill_.of(layer);
    return {rows(layer), filled, dims_.batch, sequence_size(), dims_.d_latent, dims_.d_rope};
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

  /// Bytes reserved: L·B·N·(r + d_R)·sizeof(Dtype).
  std::size_t nbytes() const { return static_cast<std::size_t>(count_elements(dims_)) * sizeof(Dtype); }
  Index capacity() const { return dims_.max_len; }
  const LatentDims& dims() const { return dims_; }
  const CacheStats& stats() const { return stats_; }

  /// A deep copy.
  /// Cost: copies the filled rows; reserves as much again
  LatentCache clone() const {
    LatentCache copy(dims_);
    for (Index layer = 0; layer < dims_.n_layers; ++layer) {
      const auto filled = static_cast<std::size_t>(fill_.of(layer) * row_size()) * sizeof(Dtype);
      for (Index b = 0; b < dims_.batch; ++b) {
        std::memcpy(copy.rows(layer) + b * sequence_size(), rows(layer) + b * sequence_size(), filled);
      }
    }
    copy.fill_ = fill_;
    copy.stats_ = stats_;
    return copy;
  }

 private:
  static Index count_elements(const LatentDims& dims) {
    static_cast<void>(checked_product({dims.d_latent, dims.d_rope}));  // each of them at least 1, before their sum
    return checked_product({dims.n_layers, dims.batch, dims.max_len, dims.d_latent + dims.d_rope});
  }

  Index row_size() const { return dims_.d_latent + dims_.d_rope; }
  Index sequence_size() const { return dims_.max_len * row_size(); }
  Dtype* rows(Index layer) { return storage_.data() + layer * dims_.batch * sequence_size(); }
  const Dtype* rows(Index layer) const { return storage_.data() + layer * dims_.batch * sequence_size(); }

  LatentDims dims_;
  AlignedBuffer<Dtype> storage_;
  FillCounts fill_;
  CacheStats stats_;
};

}  // namespace tinyllm
