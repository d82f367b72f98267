// SPDX-License-Identifier: Apache-2.0
// The words of the library: ids, indices, positions and float matrices.
//
//     tinyllm::TokenId id = 42;
//     for (tinyllm::Index p : tinyllm::Positions(7, 3)) { ... }   // 7, 8, 9
#pragma once

#include <Eigen/Core>

#include <cstddef>
#include <cstdint>
#include <iterator>

namespace tinyllm {

/// A token's number in its vocabulary. Any value may arrive from outside; numbers that no vocabulary has give no text.
using TokenId = std::int32_t;

/// Sizes, layers, heads and positions: signed like Eigen's indices, so that a negative input can be refused by name.
using Index = std::ptrdiff_t;

/// Float matrix whose rows lie one after the other, as activations and logits do.
/// Shape: [rows, cols]
using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// The absolute positions [first, first + size) of the tokens of one forward pass: a value, which later appends do not move.
/// Example: `for (Index p : cache.positions(ids.size()))`
class Positions {
 public:
  class iterator {
   public:
    using value_type = Index;
    using difference_type = std::ptrdiff_t;
    using reference = Index;
    using pointer = void;
    using iterator_category = std::input_iterator_tag;

    iterator() = default;
    explicit iterator(Index position) : position_(position) {}
    Index operator*() const { return position_; }
    iterator& operator++() {
      ++position_;
      return *this;
    }
    iterator operator++(int) {
      iterator before = *this;
      ++position_;
      return before;
    }
    friend bool operator==(iterator, iterator) = default;

   private:
    Index position_ = 0;
  };

  Positions() = default;
  Positions(Index first, Index size) : first_(first), size_(size) {}

  Index first() const { return first_; }
  Index size() const { return size_; }
  bool empty() const { return size_ == 0; }
  /// Pre: 0 <= i < size()
  Index operator[](Index i) const { return first_ + i; }
  iterator begin() const { return iterator(first_); }
  iterator end() const { return iterator(first_ + size_); }
  friend bool operator==(const Positions&, const Positions&) = default;

 private:
  Index first_ = 0;
  Index size_ = 0;
};

}  // namespace tinyllm
