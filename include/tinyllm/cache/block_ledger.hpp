// SPDX-License-Identifier: Apache-2.0
// BlockLedger: who holds which block of a pool: references, the free blocks, and those that are only kept for later use.
//
//     BlockLedger ledger(n_blocks);
//     BlockId id = ledger.take();        // one reference; the lowest free id, so that neighbours in time lie side by side
//     ledger.share(id);                  // one more
//     ledger.release(id);                // the last one gives the block back, or leaves it kept
//
// A block is free, held (it has references) or idle: kept without any. Idle blocks are taken, the one idle for longest first,
// when nothing is free. The ledger knows nothing of what blocks hold.
// Threads: const members may run on several threads at once.
#pragma once

#include <tinyllm/core/aligned_buffer.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

namespace tinyllm {

/// A block's number in its pool.
using BlockId = Index;

/// The pool has too few blocks for the positions that were asked for; nothing has changed. `capacity()` counts the positions
/// that the sequence could hold with all that can be had just now.
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
      : blocks_(static_cast<std::size_t>(checked_product({n_blocks})) + 1), free_(static_cast<std::size_t>(n_blocks)) {
    std::iota(free_.begin(), free_.end(), BlockId{0});  // in order, and so a heap
    at(ring()).older = at(ring()).newer = ring();
  }

  /// Blocks that there are.
  Index size() const { return static_cast<Index>(blocks_.size()) - 1; }
  /// Blocks that nobody holds or keeps.
  Index free() const { return static_cast<Index>(free_.size()); }
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

  /// A block that nobody holds, with one reference.
  /// Pre: available() > 0
  /// Cost: O(log size), no allocation
  BlockId take() {
    TINYLLM_ASSERT(available() > 0);
    BlockId id = 0;
    if (!free_.empty()) {
      std::pop_heap(free_.begin(), free_.end(), std::greater<>());
      id = free_.back();
      free_.pop_back();
    } else {
      id = at(ring()).newer;
      leave_ring(id);
      at(id).kept = 0;
      ++evictions_;
    }
    at(id).references = 1;
    return id;
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
  /// Cost: O(log size), no allocation
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

  void give_back(BlockId id) {
    free_.push_back(id);
    std::push_heap(free_.begin(), free_.end(), std::greater<>());
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
  std::vector<BlockId> free_;  // a heap, the lowest first
  Index idle_ = 0;
  Index shared_ = 0;
  std::size_t evictions_ = 0;
  Kept last_kept_ = 0;
};

}  // namespace tinyllm
