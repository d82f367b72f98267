// SPDX-License-Identifier: Apache-2.0
// The library's own exception, its assertion, and the one way in which messages with numbers are put together.
//
//     try { cache.update(layer, k, v); } catch (const tinyllm::CacheFull& e) { wait_for(e.requested()); }
//
// Impossible input throws std::invalid_argument, std::out_of_range or std::length_error and changes nothing. Only a full
// cache has a type of its own, because callers do something about it.
#pragma once

#include <tinyllm/core/types.hpp>

#include <cassert>
#include <sstream>
#include <stdexcept>
#include <string>

/// A caller's bug on a hot path. Define it before the first include to throw, as the tests do; like assert otherwise.
#ifndef TINYLLM_ASSERT
#define TINYLLM_ASSERT(condition) assert(condition)
#endif

namespace tinyllm {

namespace detail {

/// The arguments written one after the other.
template <class... Parts>
std::string message(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace detail

/// There is no room for the positions that were asked for; the cache is as it was.
/// Units: all three numbers count positions.
class CacheFull : public std::runtime_error {
 public:
  CacheFull(Index requested, Index seq_len, Index capacity)
      : std::runtime_error(
            detail::message("cache is full: ", requested, " more positions asked for, ", seq_len, " of ", capacity, " in use")),
        requested_(requested),
        seq_len_(seq_len),
        capacity_(capacity) {}

  Index requested() const { return requested_; }
  Index seq_len() const { return seq_len_; }
  Index capacity() const { return capacity_; }

 private:
  Index requested_;
  Index seq_len_;
  Index capacity_;
};

}  // namespace tinyllm
