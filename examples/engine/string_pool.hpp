// SPDX-License-Identifier: Apache-2.0
//
// Numbered byte strings kept in one block of memory, some of which can be found by their bytes.
//
//     engine::StringPool pool;
//     std::int32_t n = pool.append("hello");    // numbers count up from 0
//     pool.make_findable(n);
//     pool.find("hello");                       // n, or -1 when no findable string is equal
//
// Errors: std::length_error beyond 4 GiB of bytes or 2^31 - 1 strings.
// Lifetime: append() may move the bytes, so views given before it are invalid after it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace engine {

class StringPool {
 public:
  void reserve(std::size_t strings, std::size_t bytes) {
    ends_.reserve(strings + 1);
    arena_.reserve(bytes);
    if (strings * 2 > slots_.size()) {
      rehash(strings * 2);
    }
  }

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(ends_.size() - 1); }

  // Pre: 0 <= number < size().
  [[nodiscard]] std::string_view operator[](std::int32_t number) const {
    const auto n = static_cast<std::size_t>(number);
    return std::string_view(arena_).substr(ends_[n], ends_[n + 1] - ends_[n]);
  }

  std::int32_t append(std::string_view bytes) {
    if (bytes.size() > std::numeric_limits<std::uint32_t>::max() - arena_.size() ||
        ends_.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
      throw std::length_error("a string pool is full");
    }
    arena_ += bytes;
    ends_.push_back(static_cast<std::uint32_t>(arena_.size()));
    longest_ = bytes.size() > longest_ ? bytes.size() : longest_;
    return size() - 1;
  }

  // False, and nothing changes, when an equal string is findable already.
  bool make_findable(std::int32_t number) {
    if (2 * (findable_ + 1) > slots_.size()) {
      rehash(slots_.size() * 2 + 16);
    }
    const std::string_view bytes = (*this)[number];
    const std::uint64_t hash = hash_of(bytes);
    std::size_t at = hash & (slots_.size() - 1);
    for (; slots_[at].number >= 0; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].tag == tag_of(hash) && (*this)[slots_[at].number] == bytes) {
        return false;
      }
    }
    slots_[at] = {tag_of(hash), number};
    ++findable_;
    return true;
  }

  [[nodiscard]] std::int32_t find(std::string_view bytes) const {
    if (bytes.size() > longest_ || slots_.empty()) {
      return -1;
    }
    const std::uint64_t hash = hash_of(bytes);
    for (std::size_t at = hash & (slots_.size() - 1); slots_[at].number >= 0; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at].tag == tag_of(hash) && (*this)[slots_[at].number] == bytes) {
        return slots_[at].number;
      }
    }
    return -1;
  }

  // Units: bytes of the longest string.
  [[nodiscard]] std::size_t longest() const { return longest_; }

 private:
  struct Slot {
    std::uint32_t tag = 0;
    std::int32_t number = -1;
  };

  static std::uint64_t hash_of(std::string_view bytes) { return std::hash<std::string_view>{}(bytes); }
  static std::uint32_t tag_of(std::uint64_t hash) { return static_cast<std::uint32_t>(hash >> 32); }

  void rehash(std::size_t at_least) {
    std::size_t count = 16;
    while (count < at_least) {
      count *= 2;
    }
    std::vector<Slot> old(count);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.number >= 0) {
        std::size_t at = hash_of((*this)[slot.number]) & (count - 1);
        while (slots_[at].number >= 0) {
          at = (at + 1) & (count - 1);
        }
        slots_[at] = slot;
      }
    }
  }

  std::string arena_;
  std::vector<std::uint32_t> ends_ = {0};
  std::vector<Slot> slots_;  // open addressing; a power of two, at most half full
  std::size_t findable_ = 0;
  std::size_t longest_ = 0;
};

}  // namespace engine
