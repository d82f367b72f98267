// SPDX-License-Identifier: Apache-2.0
//
// Reading text one code point at a time where it is UTF-8 and one byte at a time where it is not.
//
//     for (std::size_t at = 0; at < text.size(); at += engine::code_point_at(text, at).length) { ... }
//
// Errors: none; a byte that starts no whole, shortest-form UTF-8 sequence counts as U+FFFD, one byte long.
// Lifetime: nothing is kept.
// Source: the Unicode standard, table 3-7 (well-formed byte sequences).

#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace engine {

struct CodePoint {
  char32_t value;
  std::size_t length;  // bytes, 1 to 4
};

// Pre: at < text.size().
[[nodiscard]] inline CodePoint code_point_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  constexpr CodePoint broken{0xFFFD, 1};
  const char32_t first = byte(0);
  if (first < 0x80) {
    return {first, 1};
  }
  if (first < 0xC2 || first > 0xF4) {
    return broken;
  }
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (text.size() - at < length) {
    return broken;
  }
  char32_t value = first & (0x7FU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) {
      return broken;
    }
    value = value << 6 | (byte(i) & 0x3F);
  }
  const bool too_long = length == 3 ? value < 0x800 : length == 4 && value < 0x10000;
  const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
  return too_long || surrogate || value > 0x10FFFF ? broken : CodePoint{value, length};
}

inline void append_utf8(std::string& text, char32_t value) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (value < 0x80) {
    put(value);
  } else if (value < 0x800) {
    put(0xC0 | value >> 6);
    put(0x80 | (value & 0x3F));
  } else if (value < 0x10000) {
    put(0xE0 | value >> 12);
    put(0x80 | (value >> 6 & 0x3F));
    put(0x80 | (value & 0x3F));
  } else {
    put(0xF0 | value >> 18);
    put(0x80 | (value >> 12 & 0x3F));
    put(0x80 | (value >> 6 & 0x3F));
    put(0x80 | (value & 0x3F));
  }
}

}  // namespace engine
