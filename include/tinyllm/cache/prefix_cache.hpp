// SPDX-License-Identifier: Apache-2.0
// PrefixCache: the full blocks of earlier sequences, found again by their tokens: what many prompts begin with is kept once.
//
//     PrefixCache prefixes(pool);
//     PagedKVCache<Eigen::half> cache(pool);
//     Index held = prefixes.take(prompt, cache);       // at most n - 1 tokens: one is left to give logits
//     ... forward passes over the rest ...
//     prefixes.publish(tokens, cache);                 // any time: its full blocks can be taken from now on
//
// A block is found by a hash chained from the sequence's beginning, and taken only if its tokens, and all before them, are the
// same. Blocks that only the prefix cache keeps are evicted when the pool needs them, the one unused for longest first. Keeps
// the pool alive; several prefix caches may share one.
// Threads: as the pool's sequences: one thread at a time, const members several.
#pragma once

#include <tinyllm/cache/block_ledger.hpp>
#include <tinyllm/cache/block_pool.hpp>
#include <tinyllm/cache/paged_kv_cache.hpp>
#include <tinyllm/core/aligned_buffer.hpp>
#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tinyllm {

/// Sequences with different salts never share a block: tenants, adapters, images behind placeholder tokens.
using PrefixSalt = std::uint64_t;

/// Counts since the prefix cache was made.
/// Units: tokens, but for queries and hits
struct PrefixCacheStats {
  std::size_t queries = 0;       ///< calls of take()
  std::size_t hits = 0;          ///< those that found something
  std::size_t asked_tokens = 0;  ///< tokens of all prompts
  std::size_t hit_tokens = 0;    ///< those of them that were found
};

/// The hash of a block's tokens behind its parent's hash.
/// Source: the finalizer of Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014
struct BlockHash {
  std::uint64_t operator()(std::uint64_t parent, std::span<const TokenId> tokens) const {
    std::uint64_t hash = parent;
    for (const TokenId id : tokens) {
      hash += 0x9e3779b97f4a7c15U + static_cast<std::uint32_t>(id);
      hash = (hash ^ (hash >> 30U)) * 0xbf58476d1ce4e5b9U;
      hash = (hash ^ (hash >> 27U)) * 0x94d049bb133111ebU;
      hash ^= hash >> 31U;
    }
    return hash;
  }
};

template <class Hash = BlockHash>
class BasicPrefixCache {
 public:
  /// Throws: std::invalid_argument if the pool is null.
  template <StorageType Dtype>
  explicit BasicPrefixCache(const std::shared_ptr<BlockPool<Dtype>>& pool, Hash hash = {})
      : BasicPrefixCache(pool == nullptr ? nullptr : std::shared_ptr<BlockLedger>(pool, &pool->ledger()),
                         pool == nullptr ? 0 : pool->block_size(), hash) {}
  BasicPrefixCache(const BasicPrefixCache&) = delete;  // a block is kept once
  BasicPrefixCache& operator=(const BasicPrefixCache&) = delete;
  ~BasicPrefixCache() { clear(); }

  /// Lets an empty sequence begin with the longest known part of a prompt, of at most all its tokens but the last, so that
  /// there is something to compute. Returns how many tokens that is: the sequence's length.
  /// Throws: std::invalid_argument if the sequence is not empty or of another pool.
  /// Cost: O(tokens found), no allocation once warm but in the sequence
  template <StorageType Dtype>
  Index take(std::span<const TokenId> tokens, PagedKVCache<Dtype>& cache, PrefixSalt salt = 0) {
    check(cache);
    found_.clear();
    walk(tokens, salt, [this](BlockId id) { found_.push_back(id); });
    const Index held = std::min(usable(static_cast<Index>(found_.size()), tokens), cache.capacity());
    const auto blocks = static_cast<std::size_t>((held + block_size_ - 1) / block_size_);
    cache.begin_with(std::span<const BlockId>(found_).first(blocks), held);
    ++stats_.queries;
    stats_.hits += held > 0 ? 1U : 0U;
    stats_.asked_tokens += tokens.size();
    stats_.hit_tokens += static_cast<std::size_t>(held);
    return held;
  }

  /// How many tokens take() would find.
  Index match(std::span<const TokenId> tokens, PrefixSalt salt = 0) const {
    Index blocks = 0;
    walk(tokens, salt, [&blocks](BlockId) { ++blocks; });
    return usable(blocks, tokens);
  }

  /// How many of the pool's available blocks a sequence takes that begins with take() and grows to hold all these tokens.
  Index blocks_needed(std::span<const TokenId> tokens, PrefixSalt salt = 0) const {
    const auto n = static_cast<Index>(tokens.size());
    Index needed = (n + block_size_ - 1) / block_size_;
    Index end = 0;
    walk(tokens, salt, [&](BlockId id) {
      end += block_size_;
      if (end < n && ledger_->references(id) > 0) --needed;  // it is not available, and nothing is written into it
    });
    return needed;
  }

  /// Keeps the full blocks of a sequence whose first tokens are these. What is known already stays as it is.
  /// Throws: std::invalid_argument if the sequence is of another pool.
  /// Pre: `tokens` are what the sequence holds, in order; more may follow
  /// Cost: O(tokens), no allocation
  template <StorageType Dtype>
  void publish(std::span<const TokenId> tokens, const PagedKVCache<Dtype>& cache, PrefixSalt salt = 0) {
    check(cache);
    const Index full = std::min(static_cast<Index>(tokens.size()), cache.seq_len()) / block_size_;
    Place at = root(salt);
    for (Index i = 0; i < full; ++i) {
      at = next(at, block_of(tokens, i));
      if (const BlockId known = find(at, block_of(tokens, i)); known != none()) {
        at.parent = node(known).self;
        continue;
      }
      const BlockId ours = cache.blocks()[static_cast<std::size_t>(i)];
      if (ledger_->kept(ours) != 0) return;  // it is known under a beginning that was evicted, or to another prefix cache
      insert(ours, at, block_of(tokens, i));
      at.parent = node(ours).self;
    }
  }

  /// Forgets everything; blocks that sequences hold stay theirs.
  void clear() {
    for (BlockId id = 0; id < none(); ++id) {
      if (is_live(id)) ledger_->drop(id);
    }
  }

  const PrefixCacheStats& stats() const { return stats_; }

 private:
  // The end of a walk so far.
  struct Place {
    BlockLedger::Kept parent;  // how the block before is kept; 0 at the beginning
    PrefixSalt salt;
    std::uint64_t hash;
  };
  // What is known of the block of this number, unless it has been evicted since.
  struct Node {
    BlockLedger::Kept self = 0;
    Place at{};
    BlockId next = 0;  // in its bucket
  };

  BasicPrefixCache(std::shared_ptr<BlockLedger> ledger, Index block_size, Hash hash)
      : ledger_(checked(std::move(ledger))),
        block_size_(block_size),
        hash_(hash),
        tokens_(checked_product({ledger_->size(), block_size})),
        nodes_(static_cast<std::size_t>(ledger_->size())),
        buckets_(std::bit_ceil(nodes_.size()), none()) {}

  static std::shared_ptr<BlockLedger> checked(std::shared_ptr<BlockLedger> ledger) {
    if (ledger == nullptr) throw std::invalid_argument("a prefix cache needs a pool");
    return ledger;
  }
  template <StorageType Dtype>
  void check(const PagedKVCache<Dtype>& cache) const {
    if (&cache.pool()->ledger() != ledger_.get()) throw std::invalid_argument("the sequence is of another pool");
  }

  // All tokens but the last, which must go through the model for its logits.
  Index usable(Index blocks, std::span<const TokenId> tokens) const {
    return std::min(blocks * block_size_, std::max<Index>(static_cast<Index>(tokens.size()) - 1, 0));
  }

  std::span<const TokenId> block_of(std::span<const TokenId> tokens, Index i) const {
    return tokens.subspan(static_cast<std::size_t>(i * block_size_), static_cast<std::size_t>(block_size_));
  }

  Place root(PrefixSalt salt) const { return {0, salt, salt}; }
  Place next(const Place& at, std::span<const TokenId> tokens) const { return {at.parent, at.salt, hash_(at.hash, tokens)}; }

  // Calls f(block) for the known blocks that tokens begin with.
  template <class F>
  void walk(std::span<const TokenId> tokens, PrefixSalt salt, F f) const {
    Place at = root(salt);
    for (Index i = 0; i < static_cast<Index>(tokens.size()) / block_size_; ++i) {
      at = next(at, block_of(tokens, i));
      const BlockId id = find(at, block_of(tokens, i));
      if (id == none()) return;
      f(id);
      at.parent = node(id).self;
    }
  }

  BlockId find(const Place& at, std::span<const TokenId> tokens) const {
    for (BlockId id = bucket(at.hash); id != none(); id = node(id).next) {
      const Place& there = node(id).at;
      if (there.hash == at.hash && there.parent == at.parent && there.salt == at.salt && is_live(id) &&
          std::equal(tokens.begin(), tokens.end(), tokens_.data() + id * block_size_)) {
        return id;
      }
    }
    return none();
  }

  void insert(BlockId id, const Place& at, std::span<const TokenId> tokens) {
    Node& entry = nodes_[static_cast<std::size_t>(id)];
    if (entry.self != 0) unlink(id);  // what the block was before
    entry = {ledger_->keep(id), at, bucket(at.hash)};
    bucket(at.hash) = id;
    std::copy(tokens.begin(), tokens.end(), tokens_.data() + id * block_size_);
  }

  void unlink(BlockId id) {
    BlockId* link = &bucket(node(id).at.hash);
    while (*link != id) link = &nodes_[static_cast<std::size_t>(*link)].next;
    *link = node(id).next;
  }

  BlockId none() const { return ledger_->size(); }
  const Node& node(BlockId id) const { return nodes_[static_cast<std::size_t>(id)]; }
  bool is_live(BlockId id) const { return node(id).self != 0 && ledger_->kept(id) == node(id).self; }
  BlockId& bucket(std::uint64_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }
  const BlockId& bucket(std::uint64_t hash) const { return buckets_[hash & (buckets_.size() - 1)]; }

  std::shared_ptr<BlockLedger> ledger_;
  Index block_size_;
  Hash hash_;
  AlignedBuffer<TokenId> tokens_;  // [block][position]
  std::vector<Node> nodes_;        // by block
  std::vector<BlockId> buckets_;   // the first block of each
  std::vector<BlockId> found_;
  PrefixCacheStats stats_;
};

using PrefixCache = BasicPrefixCache<>;

}  // namespace tinyllm
