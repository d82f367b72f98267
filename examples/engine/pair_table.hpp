// SPDX-License-Identifier: Apache-2.0
//
// A hash table from a pair of 32-bit numbers to a value.
//
//     engine::PairTable<Merge> merges;
//     merges.insert(left, right, {rank, merged});      // the first insertion of a pair stays
//     if (const Merge* merge = merges.find(left, right)) use(*merge);
//
// Errors: none but std::bad_alloc.
// Lifetime: insert() invalidates the pointers that find() gave.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace engine {

template <class Value>
class PairTable {
 public:
  void reserve(std::size_t pairs) { grow_to(pairs * 2); }

  // False, and nothing changes, when the pair is there already.
  bool insert(std::int32_t left, std::int32_t right, const Value& value) {
    if (2 * (count_ + 1) > slots_.size()) {
      grow_to(slots_.size() * 2 + 16);
    }
    Slot& slot = slots_[place(key_of(left, right))];
    if (slot.key != empty) {
      return false;
    }
    slot = {key_of(left, right), value};
    ++count_;
    return true;
  }

  // Pre: neither number is negative.
  [[nodiscard]] const Value* find(std::int32_t left, std::int32_t right) const {
    if (slots_.empty()) {
      return nullptr;
    }
    const Slot& slot = slots_[place(key_of(left, right))];
    return slot.key == empty ? nullptr : &slot.value;
  }

 private:
  static constexpr std::uint64_t empty = ~std::uint64_t{0};

  struct Slot {
    std::uint64_t key = empty;
    Value value{};
  };

  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
  }

  [[nodiscard]] std::size_t place(std::uint64_t key) const {
    const std::uint64_t mixed = (key ^ key >> 29) * 0x9E3779B97F4A7C15U;
    std::size_t at = static_cast<std::size_t>(mixed >> 20) & (slots_.size() - 1);
    while (slots_[at].key != empty && slots_[at].key != key) {
      at = (at + 1) & (slots_.size() - 1);
    }
    return at;
  }

  void grow_to(std::size_t at_least) {
    std::size_t count = 16;
    while (count < at_least) {
      count *= 2;
    }
    if (count <= slots_.size()) {
      return;
    }
    std::vector<Slot> old(count);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != empty) {
        slots_[place(slot.key)] = slot;
      }
    }
  }

  std::vector<Slot> slots_;  // open addressing; a power of two, at most half full
  std::size_t count_ = 0;
};

}  // namespace engine
