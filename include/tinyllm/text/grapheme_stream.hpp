// SPDX-License-Identifier: Apache-2.0
// GraphemeStream: holds text back until what a reader sees as one character is whole, so that no half of an emoji is drawn.
//
//     GraphemeStream graphemes;
//     std::string out;
//     graphemes.push("👩", out);                 // out is "": more may join it
//     graphemes.push("\u200D👧 and", out);       // out is "👩‍👧 an"
//     graphemes.flush(out);                      // the rest
//
// The last cluster always waits, since a mark may follow it; a longer one than `most_held` bytes goes out as it comes.
// Source: Unicode Standard Annex #29, "Unicode Text Segmentation", extended grapheme clusters, by ICU.
#pragma once

#include <tinyllm/core/error.hpp>

#include <unicode/ubrk.h>
#include <unicode/utext.h>

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

namespace tinyllm {

/// Copies are independent.
/// Threads: one stream, one thread
class GraphemeStream {
 public:
  /// Units: bytes
  static constexpr std::size_t most_held = 128;

  GraphemeStream() = default;
  GraphemeStream(const GraphemeStream& other) : held_(other.held_) {}
  GraphemeStream(GraphemeStream&&) = default;
  GraphemeStream& operator=(GraphemeStream other) {
    held_.swap(other.held_);
    return *this;
  }

  /// Appends to `out` the clusters that are whole.
  /// Pre: `text` is well-formed UTF-8
  /// Throws: std::runtime_error if ICU has no rules for clusters.
  void push(std::string_view text, std::string& out) {
    if (text.empty()) return;
    held_ += text;
    const std::size_t whole = last_cluster(held_);
    out.append(held_, 0, whole);
    held_.erase(0, whole);
  }

  /// Appends what is held.
  void flush(std::string& out) {
    out += held_;
    held_.clear();
  }

  std::string_view held() const { return held_; }

 private:
  struct CloseBreaks {
    void operator()(UBreakIterator* breaks) const { ubrk_close(breaks); }
  };
  struct CloseText {
    void operator()(UText* text) const { utext_close(text); }
  };

  // Where the last cluster begins; the end of the text if it is too long to wait.
  std::size_t last_cluster(std::string_view text) {
    UErrorCode status = U_ZERO_ERROR;
    if (breaks_ == nullptr) breaks_.reset(ubrk_open(UBRK_CHARACTER, "", nullptr, 0, &status));
    UText* opened = utext_openUTF8(utext_.get(), text.data(), static_cast<std::int64_t>(text.size()), &status);
    if (utext_ == nullptr) utext_.reset(opened);
    ubrk_setUText(breaks_.get(), utext_.get(), &status);
    if (U_FAILURE(status)) throw std::runtime_error(detail::message("ICU: ", u_errorName(status)));
    ubrk_last(breaks_.get());
    const std::int32_t begin = ubrk_previous(breaks_.get());
    const std::size_t boundary = begin == UBRK_DONE ? 0 : static_cast<std::size_t>(begin);
    return text.size() - boundary > most_held ? text.size() : boundary;
  }

  std::unique_ptr<UText, CloseText> utext_;  // both opened when they are first needed
  std::unique_ptr<UBreakIterator, CloseBreaks> breaks_;
  std::string held_;
};

}  // namespace tinyllm
