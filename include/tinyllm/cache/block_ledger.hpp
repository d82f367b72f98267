// SPDX-License-Identifier: Apache-2.0
// BlockLedger: who holds which block of a pool: references, the free blocks, and those that are only kept for later use.
//
//     BlockLedger ledger(n_blocks);
//     BlockId first = ledger.take();     // one reference
//     BlockId next = ledger.take(first); // the one behind it, if it is free
//     ledger.share(first);               // one reference more
//     ledger.release(first);             // the last one gives the block back, or leaves it kept
//
// A block is free, held (it has references) or idle: kept without any. Idle blocks are taken, the one idle for longest first,
// when nothing is free. Who takes a first block gets the beginning of a free stretch, so that sequences which grow side by
// side still lie in long runs: they are read two and three times as fast. The ledger knows nothing of what blocks hold.
// Threads: const members may run on several threads at once.
#pragma once

#include <tinyllm/core/aligned_buffer.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tinyllm {

/// A block's number in its pool.
using BlockId = Index;

/// The pool has too few blocks for the positions that were asked for; nothing has changed. `capacity()` counts the positions
/// that the sequence could hold with all that can be had just now, those it holds included: an append up to there succeeds.
/// Units: blocks, but for what CacheFull counts
class OutOfBlocks : public CacheFull {
 public:
  struct Blocks {
    Index needed;
    Index available;
    Index size;
  };

  OutOfBlocks(Index requested, Index seq_len, Index capacity, const Blocks& blocks)
      : CacheFull(requested, seq_len, capacity),
        blocks_(blocks),
        what_(detail::message("cache is full: ", requested, " more positions behind ", seq_len, " need ", blocks.needed,
                              " more blocks, ", blocks.available, " of ", blocks.size, " can be had")) {}

  const char* what() const noexcept override { return what_.c_str(); }
  const Blocks& blocks() const { return blocks_; }

 private:
  Blocks blocks_;
  std::string what_;
};

class BlockLedger {
 public:
  /// Names one keeping of one block, for ever; 0 is none.
  using Kept = std::uint64_t;

  /// Throws: std::invalid_argument if n_blocks < 1.
  explicit BlockLedger(Index n_blocks)
      : blocks_(static_cast<std::size_t>(checked_product({n_blocks})) + 1),
        free_((static_cast<std::size_t>(n_blocks) + word_bits - 1) / word_bits) {
    for (BlockId id = 0; id < n_blocks; ++id) give_back(id);
    at(ring()).older = at(ring()).newer = ring();
  }

  /// Blocks that there are.
  Index size() const { return static_cast<Index>(blocks_.size()) - 1; }
  /// Blocks that nobody holds or keeps.
  Index free() const { return n_free_; }
  /// Blocks that are kept and that nobody holds.
  Index idle() const { return idle_; }
  /// Blocks that take() can give.
  Index available() const { return free() + idle(); }
  /// Blocks that are held.
  Index held() const { return size() - available(); }
  /// Blocks that are held more than once.
  Index shared() const { return shared_; }
  /// Kept blocks that were taken for something else.
  std::size_t evictions() const { return evictions_; }

  /// Pre: 0 <= id < size()
  Index references(BlockId id) const { return at(id).references; }
  /// What keep() returned, while the block is kept, else 0.
  Kept kept(BlockId id) const { return at(id).kept; }
  /// Whether its only holder may change what it holds.
  bool writable(BlockId id) const { return references(id) == 1 && kept(id) == 0; }

  /// A block that nobody holds, with one reference: the one behind `behind` if that is free.
  /// Pre: available() > 0
  /// Cost: O(1) behind another block, at worst O(size / 64); no allocation
  BlockId take(std::optional<BlockId> behind = std::nullopt) {
    make_free(1);
    const BlockId id = behind && is_free(*behind + 1) ? *behind + 1 : widest_free();
    word_of(id) &= ~bit_of(id);
    --n_free_;
    at(id).references = 1;
    return id;
  }

  /// Evicts idle blocks until `n` are free: blocks that are taken together then lie together.
  /// Pre: available() >= n
  void make_free(Index n) {
    TINYLLM_ASSERT(available() >= n);
    for (; free() < n; ++evictions_) drop(at(ring()).newer);
  }

  /// Adds a reference.
  /// Pre: the block is held or idle
  void share(BlockId id) {
    TINYLLM_ASSERT(references(id) > 0 || kept(id) != 0);
    if (references(id) == 0) leave_ring(id);
    if (references(id) == 1) ++shared_;
    ++at(id).references;
  }

  /// Takes a reference away.
  /// Pre: the block is held
  /// Cost: O(1), no allocation
  void release(BlockId id) {
    TINYLLM_ASSERT(references(id) > 0);
    if (references(id) == 2) --shared_;
    if (--at(id).references > 0) return;
    if (kept(id) != 0) {
      join_ring(id);
    } else {
      give_back(id);
    }
  }

  /// The block stays what it is when its last reference goes, until it is evicted or dropped.
  /// Pre: the block is held and not kept
  Kept keep(BlockId id) {
    TINYLLM_ASSERT(references(id) > 0 && kept(id) == 0);
    return at(id).kept = ++last_kept_;
  }

  /// The block is kept no longer.
  /// Pre: the block is kept
  void drop(BlockId id) {
    TINYLLM_ASSERT(kept(id) != 0);
    at(id).kept = 0;
    if (references(id) > 0) return;
    leave_ring(id);
    give_back(id);
  }

 private:
  static constexpr std::size_t word_bits = 64;

  struct Block {
    Index references = 0;
    Kept kept = 0;
    BlockId older = 0;  // neighbours among the idle blocks
    BlockId newer = 0;
  };

  // The idle blocks are a ring through this one, which is no block.
  BlockId ring() const { return size(); }
  Block& at(BlockId id) { return blocks_[static_cast<std::size_t>(id)]; }
  const Block& at(BlockId id) const { return blocks_[static_cast<std::size_t>(id)]; }

  static std::uint64_t bit_of(BlockId id) { return std::uint64_t{1} << (static_cast<std::size_t>(id) % word_bits); }
  std::uint64_t& word_of(BlockId id) { return free_[static_cast<std::size_t>(id) / word_bits]; }
  bool is_free(BlockId id) { return id < size() && (word_of(id) & bit_of(id)) != 0; }

  void give_back(BlockId id) {
    word_of(id) |= bit_of(id);
    ++n_free_;
  }

  // The first block of the first free stretch of 64 blocks, or 16, 4 or 1 if there is none.
  // Pre: free() > 0
  BlockId widest_free() const {
    constexpr std::uint64_t every[] = {1, 0x0001'0001'0001'0001, 0x1111'1111'1111'1111, ~std::uint64_t{0}};
    Index stretch = word_bits;
    for (const std::uint64_t starts : every) {
      for (std::size_t i = 0; i < free_.size(); ++i) {
        std::uint64_t whole = free_[i];  // bit b: blocks b, ..., b + stretch - 1 are free
        for (Index n = 1; n < stretch; n *= 2) whole &= whole >> n;
        if ((whole & starts) != 0) return static_cast<BlockId>(i * word_bits) + std::countr_zero(whole & starts);
      }
      stretch /= 4;
    }
    return size();
  }

  void join_ring(BlockId id) {
    const BlockId newest = at(ring()).older;
    at(id).older = newest;
    at(id).newer = ring();
    at(newest).newer = at(ring()).older = id;
    ++idle_;
  }

  void leave_ring(BlockId id) {
    at(at(id).older).newer = at(id).newer;
    at(at(id).newer).older = at(id).older;
    --idle_;
  }

  std::vector<Block> blocks_;
  std::vector<std::uint64_t> free_;  // a bit a block
  Index n_free_ = 0;
  Index idle_ = 0;
  Index shared_ = 0;
  std::size_t evictions_ = 0;
  Kept last_kept_ = 0;
};

}  // namespace tinyllm
