// SPDX-License-Identifier: Apache-2.0
// BlockPool: the memory that many sequences share: blocks of a fixed number of positions, each of all layers, keys and values.
//
//     auto pool = std::make_shared<BlockPool<Eigen::half>>(pool_dims(cache_dims(model), n_blocks));
//     PagedKVCache<Eigen::half> a(pool), b(pool);
//     pool->ledger().free();                    // and held(), shared(), idle(): every block is accounted for
//
// Layout: [layer][keys | values][kv head][block][position][d], so that neighbouring blocks of a head are one run. Memory is
// reserved at construction, 64-byte aligned; pages are touched as they fill.
// Source: Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", 2023.
// Threads: one thread at a time, together with all its sequences, but for what PagedKVCache allows.
#pragma once

#include <tinyllm/cache/block_ledger.hpp>
#include <tinyllm/cache/chunk_view.hpp>
#include <tinyllm/cache/kv_cache.hpp>
#include <tinyllm/cache/paged_view.hpp>
#include <tinyllm/cache/row_store.hpp>
#include <tinyllm/core/aligned_buffer.hpp>
#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/types.hpp>

#include <cstddef>
#include <optional>

namespace tinyllm {

/// Positions of a block unless told otherwise.
inline constexpr Index default_block_size = 16;

/// What a pool is built for. All sizes are at least 1.
/// Units: block_size in positions
struct BlockPoolDims {
  Index n_layers = 0;
  Index n_kv_heads = 0;
  Index d_head = 0;
  Index n_blocks = 0;
  Index block_size = default_block_size;
  friend bool operator==(const BlockPoolDims&, const BlockPoolDims&) = default;
};

/// A pool for sequences of this cache's sizes: as many blocks as asked for, or enough for one sequence of `max_len`.
/// Throws: std::invalid_argument if the block size or `max_len` is below 1.
inline BlockPoolDims pool_dims(const CacheDims& dims, std::optional<Index> n_blocks = std::nullopt,
                               Index block_size = default_block_size) {
  static_cast<void>(checked_product({block_size}));
  return {.n_layers = dims.n_layers,
          .n_kv_heads = dims.n_kv_heads,
          .d_head = dims.d_head,
          .n_blocks = n_blocks ? *n_blocks : (checked_product({dims.max_len}) - 1) / block_size + 1,
          .block_size = block_size};
}

template <StorageType Dtype = float>
class BlockPool {
 public:
  using value_type = Dtype;

  /// Throws: std::invalid_argument for a size below 1, std::length_error for sizes whose product overflows,
  ///   std::bad_alloc if the system has no such address space.
  explicit BlockPool(const BlockPoolDims& dims)
      : dims_(dims),
        head_rows_(checked_product({dims.n_blocks, dims.block_size})),
        part_rows_(checked_product({dims.n_kv_heads, head_rows_})),
        rows_(checked_product({2, dims.n_layers, part_rows_}), dims.d_head),
        ledger_(dims.n_blocks) {}
  BlockPool(const BlockPool&) = delete;  // sequences hold its address
  BlockPool& operator=(const BlockPool&) = delete;

  const BlockPoolDims& dims() const { return dims_; }
  Index block_size() const { return dims_.block_size; }
  /// Positions of all blocks together.
  Index capacity() const { return dims_.n_blocks * dims_.block_size; }
  /// Bytes reserved.
  std::size_t nbytes() const { return rows_.nbytes(); }
  /// Bytes of one block.
  std::size_t block_nbytes() const { return nbytes() / static_cast<std::size_t>(dims_.n_blocks); }

  /// Who holds which block.
  const BlockLedger& ledger() const { return ledger_; }
  BlockLedger& ledger() { return ledger_; }

  /// Stores tokens [first, first + n) of a chunk in a block, from its row `row` on.
  /// Returns how many finite values became infinite.
  /// Pre: the layer and the block exist, the shapes fit, row + n <= block_size()
  std::size_t store(Index layer, const ChunkView& k, const ChunkView& v, Index first, Index n, BlockId block, Index row) {
    const Index at = block * dims_.block_size + row;
    return rows_.store(keys(layer) + at, part_of(k, first, n), 0, head_rows_) +
           rows_.store(values(layer) + at, part_of(v, first, n), 0, head_rows_);
  }

  /// Copies the first `rows` rows of one layer of a block, as stored, from this pool or one of the same sizes.
  /// Pre: the layer and the blocks exist, rows <= block_size()
  void copy_rows(Index layer, const BlockPool& from, BlockId source, BlockId destination, Index rows) {
    for (Index h = 0; h < dims_.n_kv_heads; ++h) {
      for (const Index part : {keys(layer), values(layer)}) {
        const Index head = part + h * head_rows_;
        rows_.copy(head + destination * dims_.block_size, from.rows_, head + source * dims_.block_size, rows);
      }
    }
  }

  /// One layer of the first `rows` positions of a sequence.
  /// Pre: the layer exists, `blocks` lists enough of them
  PagedKVView<Dtype> view(Index layer, const BlockId* blocks, Index rows) const {
    return {rows_.at(keys(layer)),
            rows_.at(values(layer)),
            blocks,
            rows,
            {.n_heads = dims_.n_kv_heads, .d_head = dims_.d_head, .block_size = dims_.block_size, .head_rows = head_rows_}};
  }

 private:
  static ChunkView part_of(const ChunkView& chunk, Index first, Index n) {
    ChunkShape shape = chunk.shape();
    shape.tokens = n;
    return {chunk.row(0, 0, first), shape, chunk.strides()};
  }

  // The first row of a layer's keys or values; heads follow head_rows_ apart.
  Index keys(Index layer) const { return 2 * layer * part_rows_; }
  Index values(Index layer) const { return keys(layer) + part_rows_; }

  BlockPoolDims dims_;
  Index head_rows_;  // rows of one head's keys in one layer
  Index part_rows_;  // rows of one layer's keys; its values follow
  RowStore<Dtype> rows_;
  BlockLedger ledger_;
};

}  // namespace tinyllm
