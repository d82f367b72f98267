// SPDX-License-Identifier: Apache-2.0
// BlockTable: the blocks of one sequence in order, each with a reference that ends with the table.
//
//     BlockTable table(ledger, most_blocks);
//     table.share(other.blocks().first(3));                    // one reference more for each
//     if (!table.extend(first, end, copy)) wait();             // blocks [first, end) are there and ours alone
//     table.shrink(2);
//
// Memory for `most` ids is reserved, so that `data()` stays where it is. Move-only.
#pragma once

#include <tinyllm/cache/block_ledger.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace tinyllm {

class BlockTable {
 public:
  /// Pre: the ledger is not null
  BlockTable(std::shared_ptr<BlockLedger> ledger, Index most) : ledger_(std::move(ledger)) {
    ids_.reserve(static_cast<std::size_t>(most));
  }
  BlockTable(BlockTable&& other) noexcept : ledger_(std::move(other.ledger_)), ids_(std::exchange(other.ids_, {})) {}
  BlockTable& operator=(BlockTable&& other) noexcept {
    BlockTable taken(std::move(other));
    ledger_.swap(taken.ledger_);
    ids_.swap(taken.ids_);
    return *this;
  }
  ~BlockTable() { shrink(0); }

  Index size() const { return static_cast<Index>(ids_.size()); }
  const BlockId* data() const { return ids_.data(); }
  std::span<const BlockId> blocks() const { return ids_; }
  /// Pre: 0 <= i < size()
  BlockId operator[](Index i) const { return ids_[static_cast<std::size_t>(i)]; }

  /// Appends blocks that others hold or keep.
  /// Pre: no more than `most` in all
  void share(std::span<const BlockId> blocks) {
    for (const BlockId id : blocks) {
      ledger_->share(id);
      ids_.push_back(id);
    }
  }

  /// Gives back the blocks from `n` on, the last one first: of a prefix that is kept, the end is evicted first.
  void shrink(Index n) noexcept {
    for (; size() > n; ids_.pop_back()) ledger_->release(ids_.back());
  }

  /// How many blocks extend(first, end) cannot do without.
  Index missing(Index first, Index end) const {
    const Count count = count_missing(first, end);
    return count.fresh + count.copied;
  }

  /// Makes the table reach to `end`, and its blocks from `first` on writable: for one that is shared, another takes its place
  /// after `copy(i, from, to)`. False, and nothing has changed, if there are too few blocks.
  /// Pre: 0 <= first <= size(), end <= most
  /// Cost: no allocation
  template <class Copy>
  [[nodiscard]] bool extend(Index first, Index end, Copy&& copy) {
    const Count count = count_missing(first, end);
    const Index available = ledger_->available();
    if (count.fresh + count.copied > available) return false;
    // A block that is only kept beside us is taken from its keeper where there is none to copy it to.
    const bool seize = count.fresh + count.copied + count.kept > available;
    ledger_->make_free(count.fresh + count.copied + (seize ? 0 : count.kept));
    for (Index i = first; i < std::min(end, size()); ++i) {
      BlockId& id = ids_[static_cast<std::size_t>(i)];
      if (ledger_->writable(id)) continue;
      if (seize && ledger_->references(id) == 1) {
        ledger_->drop(id);
        continue;
      }
      const BlockId ours = ledger_->take(before(i));
      copy(i, id, ours);
      ledger_->release(std::exchange(id, ours));
    }
    while (size() < end) ids_.push_back(ledger_->take(before(size())));
    return true;
  }

 private:
  struct Count {
    Index fresh;       // behind the table's end
    Index copied = 0;  // held by others too
    Index kept = 0;    // held by us alone, but kept
  };

  std::optional<BlockId> before(Index i) const { return i > 0 ? std::optional((*this)[i - 1]) : std::nullopt; }

  Count count_missing(Index first, Index end) const {
    Count count{.fresh = std::max<Index>(end - size(), 0)};
    for (Index i = first; i < std::min(end, size()); ++i) {
      if (ledger_->writable((*this)[i])) continue;
      ++(ledger_->references((*this)[i]) > 1 ? count.copied : count.kept);
    }
    return count;
  }

  std::shared_ptr<BlockLedger> ledger_;
  std::vector<BlockId> ids_;
};

}  // namespace tinyllm
