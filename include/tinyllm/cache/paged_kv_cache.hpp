// SPDX-License-Identifier: Apache-2.0
// PagedKVCache: the keys and values of one sequence, in blocks of a pool that many sequences share.
//
//     auto pool = std::make_shared<BlockPool<Eigen::half>>(pool_dims(cache_dims(model), n_blocks));
//     PagedKVCache<Eigen::half> prompt(pool);                   // takes blocks as it grows, gives them back at its end
//     PagedKVCache<Eigen::half> answer = prompt.fork();         // shares them; what is written is copied first
//     PagedKVCache<float> alone(cache_dims(model));             // with a pool of its own: a KVCache in blocks
//
// The rules are those of KVCache, for a batch of 1. Sequences of one pool never see each other's changes and may end in any
// order; each keeps the pool alive. Errors leave everything as it was. One that was moved from is empty and takes no more.
// Threads: const members may run on several threads at once. Members that are not const touch the pool, so one thread at a
//   time for all its sequences; but what `reserve` made room for may be appended to several of them at once.
#pragma once

#include <tinyllm/cache/block_ledger.hpp>
#include <tinyllm/cache/block_pool.hpp>
#include <tinyllm/cache/block_table.hpp>
#include <tinyllm/cache/cache_stats.hpp>
#include <tinyllm/cache/chunk_view.hpp>
#include <tinyllm/cache/fill_counts.hpp>
#include <tinyllm/cache/kv_cache.hpp>
#include <tinyllm/cache/paged_view.hpp>
#include <tinyllm/cache/store_chunk.hpp>
#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>

namespace tinyllm {

template <StorageType Dtype = float>
class PagedKVCache {
 public:
  using value_type = Dtype;
  using Pool = BlockPool<Dtype>;

  /// An empty sequence of at most `max_len` positions, and no more than the whole pool holds.
  /// Throws: std::invalid_argument if the pool is null or max_len < 1.
  explicit PagedKVCache(std::shared_ptr<Pool> pool, std::optional<Index> max_len = std::nullopt)
      : pool_(checked(std::move(pool))),
        dims_(dims_of(*pool_, max_len)),
        block_size_(pool_->block_size()),
        table_(std::shared_ptr<BlockLedger>(pool_, &pool_->ledger()), blocks_for(dims_.max_len)),
        fill_(dims_.n_layers, dims_.max_len) {}

  /// An empty sequence with a pool of its own, which has just enough blocks for it.
  /// Throws: as BlockPool, std::invalid_argument if the batch is not 1.
  explicit PagedKVCache(const CacheDims& dims, Index block_size = default_block_size)
      : PagedKVCache(std::make_shared<Pool>(pool_dims(checked(dims), std::nullopt, block_size)), dims.max_len) {}

  PagedKVCache(PagedKVCache&&) noexcept = default;
  PagedKVCache& operator=(PagedKVCache&&) noexcept = default;

  /// Copies a chunk in behind what this layer holds, rounds it to `Dtype`, and shows all that the layer holds then.
  /// Shape: k and v are [1, H_kv, T, d]
  /// Throws: std::out_of_range if there is no such layer, std::invalid_argument if a shape is wrong, CacheFull if T more
  ///   positions do not fit, OutOfBlocks (a CacheFull) if the pool has too few blocks. Nothing changes then.
  /// Cost: O(H_kv·T·d), no allocation; the first append behind a fork copies up to one block
  PagedKVView<Dtype> update(Index layer, const ChunkView& k, const ChunkView& v) {
    detail::check_chunk(k, "keys", 1, dims_.n_kv_heads, dims_.d_head);
    detail::check_chunk(v, "values", 1, dims_.n_kv_heads, dims_.d_head);
    detail::check_same_tokens(k, v);
    const Index tokens = k.shape().tokens;
    const Index first = fill_.reserve(layer, tokens);
    if (!make_room(first, tokens)) throw_out_of_blocks(first, tokens);
    for (Index done = 0; done < tokens;) {
      const Index row = (first + done) % block_size();
      const Index n = std::min(block_size() - row, tokens - done);
      stats_.overflowed += pool_->store(layer, k, v, done, n, table_[(first + done) / block_size()], row);
      done += n;
    }
    fill_.advance(layer, tokens);
    return view(layer);
  }

  /// All that a layer holds.
  /// Throws: std::out_of_range if there is no such layer.
  /// Invalidates: the view ends with the next truncate, move or destruction
  PagedKVView<Dtype> view(Index layer) const {
    const Index rows = fill_.of(layer);
    return pool_->view(layer, table_.data(), rows);
  }

  /// Takes the blocks that the next `tokens` positions need, so that their appends cannot run out of them. False, and nothing
  /// has changed, if they do not fit. A truncate gives back what was not used.
  /// Throws: std::invalid_argument if tokens < 1.
  [[nodiscard]] bool reserve(Index tokens) {
    const Index first = fill_.positions(tokens).first();
    return pool_ != nullptr && tokens <= capacity() - first && make_room(first, tokens);
  }

  /// Blocks that `reserve(tokens)` cannot do without.
  /// Pre: tokens >= 1 and they fit in capacity()
  Index blocks_missing(Index tokens) const { return table_.missing(seq_len() / block_size(), blocks_for(seq_len() + tokens)); }

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

  /// Forgets all positions from `n` on, in every layer, and gives back the blocks that only they used;
  /// `truncate(seq_len())` mends a pass that died half-way.
  /// Throws: std::out_of_range if n < 0 or n > seq_len(); nothing changes then.
  /// Cost: O(L) and O(1) a block, copies nothing
  void truncate(Index n) {
    fill_.truncate(n);
    table_.shrink(blocks_for(n));
  }
  /// Forgets everything.
  void clear() { truncate(0); }

  /// Another sequence that begins with the committed positions of this one.
  PagedKVCache fork() { return fork(seq_len()); }

  /// Another sequence that begins with the first `n` positions of this one. It shares their blocks, also one that is not full:
  /// whoever writes into that first gets a copy.
  /// Throws: std::out_of_range if n < 0 or n > seq_len().
  /// Cost: O(L + blocks), copies no rows
  PagedKVCache fork(Index n) {
    if (n < 0 || n > seq_len()) throw std::out_of_range(detail::message("fork: ", n, " is not in [0, ", seq_len(), "]"));
    PagedKVCache child(pool_, dims_.max_len);
    child.begin_with(blocks().first(static_cast<std::size_t>(blocks_for(n))), n);
    child.stats_ = stats_;
    return child;
  }

  /// Begins an empty sequence with `n` positions that blocks of its pool hold already, in every layer.
  /// Throws: std::invalid_argument if the sequence is not empty, or the blocks are not as many as n positions take.
  /// Pre: each block is held or kept, and its rows below n are filled
  void begin_with(std::span<const BlockId> blocks, Index n) {
    if (table_.size() != 0 || n < 0 || n > capacity() || static_cast<Index>(blocks.size()) != blocks_for(n)) {
      throw std::invalid_argument(detail::message("begin_with: ", n, " positions in ", blocks.size(), " blocks of ",
                                                  block_size(), " for a sequence that has ", table_.size(), " of ",
                                                  blocks_for(capacity())));
    }
    table_.share(blocks);
    for (Index layer = 0; layer < dims_.n_layers; ++layer) fill_.advance(layer, n);
  }

  /// Bytes of the blocks that it holds, shared ones included.
  std::size_t nbytes() const { return pool_ == nullptr ? 0 : static_cast<std::size_t>(table_.size()) * pool_->block_nbytes(); }
  Index capacity() const { return dims_.max_len; }
  const CacheDims& dims() const { return dims_; }
  const CacheStats& stats() const { return stats_; }
  Index block_size() const { return block_size_; }
  /// The block table.
  std::span<const BlockId> blocks() const { return table_.blocks(); }
  /// Null once it was moved from.
  const std::shared_ptr<Pool>& pool() const { return pool_; }

  /// A deep copy, with a pool of its own as large as this one's; `fork` shares instead.
  /// Throws: std::invalid_argument if it was moved from.
  /// Cost: copies the filled rows; reserves as much again
  PagedKVCache clone() const {
    PagedKVCache copy(std::make_shared<Pool>(checked(pool_)->dims()), dims_.max_len);
    static_cast<void>(copy.table_.extend(0, table_.size(), [](Index, BlockId, BlockId) {}));  // an empty pool is as large
    for (Index i = 0; i < table_.size(); ++i) copy.copy_block(*this, i, table_[i], copy.table_[i]);
    copy.fill_ = fill_;
    copy.stats_ = stats_;
    return copy;
  }

 private:
  static std::shared_ptr<Pool> checked(std::shared_ptr<Pool> pool) {
    if (pool == nullptr) throw std::invalid_argument("a paged cache needs a pool");
    return pool;
  }
  static const CacheDims& checked(const CacheDims& dims) {
    if (dims.batch != 1) throw std::invalid_argument(detail::message("a paged cache is one sequence, not ", dims.batch));
    return dims;
  }
  static CacheDims dims_of(const Pool& pool, std::optional<Index> max_len) {
    const BlockPoolDims& sizes = pool.dims();
    return {.n_layers = sizes.n_layers,
            .n_kv_heads = sizes.n_kv_heads,
            .d_head = sizes.d_head,
            .max_len = std::min(checked_product({max_len.value_or(pool.capacity())}), pool.capacity()),
            .batch = 1};
  }

  Index blocks_for(Index positions) const { return (positions + block_size() - 1) / block_size(); }

  // Blocks for positions [first, first + tokens), none of which anybody else sees.
  bool make_room(Index first, Index tokens) {
    return table_.extend(first / block_size(), blocks_for(first + tokens),
                         [this](Index i, BlockId from, BlockId to) { copy_block(*this, i, from, to); });
  }

  // What `other` has filled of its i-th block.
  void copy_block(const PagedKVCache& other, Index i, BlockId from, BlockId to) {
    for (Index layer = 0; layer < dims_.n_layers; ++layer) {
      const Index rows = std::clamp<Index>(other.fill_.of(layer) - i * block_size(), 0, block_size());
      pool_->copy_rows(layer, *other.pool_, from, to, rows);
    }
  }

  [[noreturn]] void throw_out_of_blocks(Index first, Index tokens) const {
    const BlockLedger& ledger = pool_->ledger();
    const Index end = blocks_for(first + tokens);
    const Index copies = table_.missing(first / block_size(), std::min(end, table_.size()));
    const Index more = ledger.available() - copies;
    const Index reachable = more < 0 ? first : std::min((table_.size() + more) * block_size(), capacity());
    throw OutOfBlocks(
        tokens, first, reachable,
        {.needed = table_.missing(first / block_size(), end), .available = ledger.available(), .size = ledger.size()});
  }

  std::shared_ptr<Pool> pool_;
  CacheDims dims_;
  Index block_size_;
  BlockTable table_;
  FillCounts fill_;
  CacheStats stats_;
};

}  // namespace tinyllm
