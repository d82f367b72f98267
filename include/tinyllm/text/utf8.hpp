// SPDX-License-Identifier: Apache-2.0
// Utf8Stream: bytes in, well-formed UTF-8 out, as soon as each character is complete.
//
//     Utf8Stream stream;
//     std::string text;
//     stream.push("\xC3", text);        // text is ""
//     stream.push("\xA9!", text);       // text is "é!"
//     stream.finish(text);              // an incomplete character at the end becomes one U+FFFD
//
// Ill-formed bytes become U+FFFD by the maximal-subpart rule.
// Source: The Unicode Standard, chapter 3.9, "U+FFFD Substitution of Maximal Subparts"; WHATWG Encoding, "UTF-8 decoder".
#pragma once

#include <tinyllm/core/error.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tinyllm {

/// U+FFFD, the replacement character, in UTF-8.
inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

/// What a decoder does with U+FFFD at the end of the text so far.
enum class Replacement {
  wait,   ///< holds them until the next character shows that they are final: no piece ends in U+FFFD
  eager,  ///< releases them at once: only the bytes of a really incomplete character wait
};

/// How many U+FFFD stand at the end of a text.
inline std::size_t trailing_replacements(std::string_view text) {
  std::size_t count = 0;
  while (text.ends_with(replacement_character)) {
    text.remove_suffix(replacement_character.size());
    ++count;
  }
  return count;
}

/// A small value: copies are independent.
class Utf8Stream {
 public:
  /// Appends to `out` the characters that `bytes` complete, ill-formed ones replaced. At most 3 bytes wait for the next call.
  /// Cost: O(bytes)
  void push(std::string_view bytes, std::string& out) {
    std::size_t i = 0;
    while (i < bytes.size()) {
      if (seen_ == 0) {
        i += append_ascii(bytes.substr(i), out);
        if (i < bytes.size()) begin(static_cast<unsigned char>(bytes[i++]), out);
      } else if (continues(bytes[i])) {
        go_on(bytes[i++], out);
      } else {
        finish(out);  // what waited is a maximal subpart; this byte is looked at again
      }
    }
  }

  /// Appends one U+FFFD if a character is incomplete, and starts afresh.
  void finish(std::string& out) {
    if (seen_ != 0) out += replacement_character;
    seen_ = 0;
  }

  /// True if this byte would go on with the incomplete character that waits.
  bool continues(char byte) const {
    const auto value = static_cast<unsigned char>(byte);
    return seen_ != 0 && value >= low_ && value <= high_;
  }

  /// Bytes of an incomplete character that wait.
  /// Units: bytes, 0 to 3
  std::size_t pending() const { return seen_; }

 private:
  static std::size_t append_ascii(std::string_view bytes, std::string& out) {
    std::size_t n = 0;
    while (n < bytes.size() && static_cast<unsigned char>(bytes[n]) < 0x80) ++n;
    out.append(bytes.data(), n);
    return n;
  }

  // The first byte of a character of two to four, with what may follow it (Table 3-7); anything else is replaced at once.
  void begin(unsigned char byte, std::string& out) {
    low_ = 0x80;
    high_ = 0xBF;
    if (byte >= 0xC2 && byte <= 0xDF) {
      length_ = 2;
    } else if (byte >= 0xE0 && byte <= 0xEF) {
      length_ = 3;
      if (byte == 0xE0) low_ = 0xA0;
      if (byte == 0xED) high_ = 0x9F;
    } else if (byte >= 0xF0 && byte <= 0xF4) {
      length_ = 4;
      if (byte == 0xF0) low_ = 0x90;
      if (byte == 0xF4) high_ = 0x8F;
    } else {
      out += replacement_character;
      return;
    }
    waiting_[0] = static_cast<char>(byte);
    seen_ = 1;
  }

  void go_on(char byte, std::string& out) {
    waiting_[seen_++] = byte;
    low_ = 0x80;
    high_ = 0xBF;
    if (seen_ == length_) {
      out.append(waiting_, length_);
      seen_ = 0;
    }
  }

  char waiting_[4] = {};
  std::uint8_t seen_ = 0;    // bytes in waiting_
  std::uint8_t length_ = 0;  // bytes of the character that waits
  std::uint8_t low_ = 0x80;  // range of the byte that may come next
  std::uint8_t high_ = 0xBF;
};

}  // namespace tinyllm
