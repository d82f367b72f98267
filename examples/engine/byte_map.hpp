// SPDX-License-Identifier: Apache-2.0
//
// GPT-2's map between bytes and printable characters, in which byte-level vocabularies write their tokens.
//
//     std::string bytes;
//     engine::append_mapped_bytes(bytes, "Ġthe");     // true; bytes == " the"
//
// Errors: text with a character outside the map gives false and leaves the output as it was.
// Lifetime: nothing is kept.
// Source: the printable Latin-1 characters stand for themselves; the other 68 bytes, in order, for U+0100 onwards.

#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "utf8_scan.hpp"

namespace engine {

namespace byte_map {

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

// The character of each byte.
inline constexpr std::array<char32_t, 256> characters = [] {
  std::array<char32_t, 256> result{};
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    result[byte] = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return result;
}();

// The byte of each character below U+0144, -1 for those outside the map.
inline constexpr std::array<int, 0x144> bytes = [] {
  std::array<int, 0x144> result{};
  for (int& byte : result) {
    byte = -1;
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    result[characters[byte]] = static_cast<int>(byte);
  }
  return result;
}();

}  // namespace byte_map

inline bool append_mapped_bytes(std::string& output, std::string_view text) {
  const std::size_t before = output.size();
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    if (point.value >= byte_map::bytes.size() || byte_map::bytes[point.value] < 0) {
      output.resize(before);
      return false;
    }
    output += static_cast<char>(static_cast<unsigned char>(byte_map::bytes[point.value]));
    at += point.length;
  }
  return true;
}

}  // namespace engine
