// SPDX-License-Identifier: Apache-2.0
// TokenSpan and TextRanges: which bytes of the text each token contributed to.
//
//     TextRanges ranges;
//     ranges.add(decoder.last_span());      // after each push
//     ranges.close(text.size());            // at the end
//     ranges[i].begin, ranges[i].end        // tokens that share a character share its bytes
//
// Units: bytes of the whole decoded text
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace tinyllm {

/// What one token did to the text: where its own text stands, and what it left open.
struct TokenSpan {
  std::size_t begin = 0;     ///< where its first character begins, one that earlier tokens began included
  std::size_t end = 0;       ///< behind the last character that is complete
  std::size_t resolved = 0;  ///< behind the character that earlier tokens had left incomplete, if this one decided it
  bool decides = false;      ///< that character is complete or broken off now
  bool open = false;         ///< its last bytes are an incomplete character, which begins at `end`
};

/// A token's bytes: [begin, end). Empty for tokens without text.
struct TextRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  friend bool operator==(const TextRange&, const TextRange&) = default;
};

/// The ranges of the tokens of one text.
class TextRanges {
 public:
  /// The next token's span.
  void add(const TokenSpan& span) {
    if (span.decides) close_open(span.resolved);
    ranges_.push_back({span.begin, span.end});
    if (span.open) {
      // Those between the open ones had no text: they stay as they are.
      open_begin_ = n_open_ == 0 ? ranges_.size() - 1 : open_begin_;
      ++n_open_;
      ranges_.back().end = pending;
    }
  }

  /// The text is over, at `size` bytes: nothing reaches beyond them.
  void close(std::size_t size) {
    close_open(size);
    for (TextRange& range : ranges_) {
      range.end = std::min(range.end, size);
      range.begin = std::min(range.begin, range.end);
    }
  }

  void reserve(std::size_t n) { ranges_.reserve(n); }
  std::size_t size() const { return ranges_.size(); }
  const TextRange& operator[](std::size_t i) const { return ranges_[i]; }

  /// One range a token.
  std::vector<TextRange> take() && { return std::move(ranges_); }

 private:
  static constexpr std::size_t pending = static_cast<std::size_t>(-1);

  // The incomplete character ends here: so do the tokens that began it.
  void close_open(std::size_t end) {
    if (n_open_ == 0) return;
    for (std::size_t i = open_begin_; i < ranges_.size(); ++i) {
      if (ranges_[i].end == pending) ranges_[i].end = end;
    }
    n_open_ = 0;
  }

  std::vector<TextRange> ranges_;
  std::size_t open_begin_ = 0;  // first token with an open end
  std::size_t n_open_ = 0;
};

}  // namespace tinyllm
