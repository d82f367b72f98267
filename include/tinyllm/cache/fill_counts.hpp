// SPDX-License-Identifier: Apache-2.0
// FillCounts: the one owner of a cache's length: how many positions each layer holds, and how many all of them hold.
//
//     FillCounts fill(n_layers, max_len);
//     Index first = fill.reserve(layer, T);     // throws CacheFull, or says where the rows go
//     fill.advance(layer, T);                   // after they were written
//     fill.committed();                         // moves only when the last layer has caught up
//
// Every cache of the library has one, so that length, positions, mask and rollback are the same in all of them.
#pragma once

#include <tinyllm/cache/causal_mask.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

#include <algorithm>
#include <vector>

namespace tinyllm {

/// A small value: copies are independent.
class FillCounts {
 public:
  /// Pre: n_layers >= 1, capacity >= 1 (the cache has checked its sizes)
  FillCounts(Index n_layers, Index capacity) : counts_(static_cast<std::size_t>(n_layers), 0), capacity_(capacity) {}

  /// Positions that every layer holds.
  Index committed() const { return counts_.empty() ? 0 : *std::min_element(counts_.begin(), counts_.end()); }

  /// Positions that one layer holds.
  /// Throws: std::out_of_range if there is no such layer.
  Index of(Index layer) const {
    check_layer(layer);
    return counts_[static_cast<std::size_t>(layer)];
  }

  Index capacity() const { return capacity_; }

  /// Where `tokens` more rows of a layer go; changes nothing.
  /// Throws: std::out_of_range if there is no such layer, CacheFull if they do not fit.
  Index reserve(Index layer, Index tokens) const {
    const Index filled = of(layer);
    if (tokens > capacity_ - filled) throw CacheFull(tokens, filled, capacity_);
    return filled;
  }

  /// Counts rows that were written.
  /// Pre: reserve(layer, tokens) succeeded
  void advance(Index layer, Index tokens) { counts_[static_cast<std::size_t>(layer)] += tokens; }

  /// Every layer holds the first `n` positions from now on.
  /// Throws: std::out_of_range if n < 0 or n > committed(); nothing changes then.
  void truncate(Index n) {
    if (n < 0 || n > committed()) {
      throw std::out_of_range(detail::message("truncate: ", n, " is not in [0, ", committed(), "]"));
    }
    std::fill(counts_.begin(), counts_.end(), n);
  }

  /// The absolute positions of the next `tokens` tokens.
  /// Throws: std::invalid_argument if tokens < 1.
  Positions positions(Index tokens) const {
    check_tokens(tokens);
    return {committed(), tokens};
  }

  /// What the next `tokens` tokens may see.
  /// Throws: std::invalid_argument if tokens < 1.
  CausalMask mask(Index tokens) const {
    check_tokens(tokens);
    return {tokens, committed()};
  }

 private:
  void check_layer(Index layer) const {
    if (layer < 0 || layer >= static_cast<Index>(counts_.size())) {
      throw std::out_of_range(detail::message("layer ", layer, " does not exist: there are ", counts_.size()));
    }
  }
  static void check_tokens(Index tokens) {
    if (tokens < 1) throw std::invalid_argument(detail::message("a pass has at least one token, not ", tokens));
  }

  std::vector<Index> counts_;
  Index capacity_;
};

}  // namespace tinyllm
