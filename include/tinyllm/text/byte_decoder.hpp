// SPDX-License-Identifier: Apache-2.0
// ByteDecoder: ids to text through each token's bytes, the fast path of IncrementalDecoder.
//
//     ByteDecoder decoder(tokenizer);                  // tokenizer.token_bytes(id), tokenizer.vocab_size()
//     std::string_view piece = decoder.push(id);       // valid until the next call
//
// O(bytes of this token), whatever came before; no allocation once its buffer has grown to the longest piece.
// The tokenizer must outlive the decoder and its copies.
#pragma once

#include <tinyllm/core/types.hpp>
#include <tinyllm/text/token_span.hpp>
#include <tinyllm/text/tokenizer.hpp>
#include <tinyllm/text/utf8.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tinyllm {

template <ByteTokenizer Tokenizer>
class ByteDecoder {
 public:
  explicit ByteDecoder(const Tokenizer& tokenizer, Replacement replacement = Replacement::wait)
      : tokenizer_(&tokenizer), replacement_(replacement) {
    reset();
  }
  explicit ByteDecoder(const Tokenizer&&, Replacement = Replacement::wait) = delete;  // it would not outlive us

  /// The text that became final. Ids outside the vocabulary give none and are counted.
  /// Invalidates: the piece ends with the next call
  std::string_view push(TokenId id) {
    text_.clear();
    last_ = {settled_, settled_, settled_, false, false};
    if (id < 0 || id >= static_cast<Index>(tokenizer_->vocab_size())) {
      ++unknown_ids_;
      return text_;
    }
    const auto& bytes = tokenizer_->token_bytes(id);
    append(std::string_view(bytes));
    settled_ += text_.size();
    last_.end = settled_;
    if (replacement_ == Replacement::wait) hold_replacements();
    return text_;
  }

  /// Where the text of the last id that was pushed stands in the text of all ids.
  const TokenSpan& last_span() const { return last_; }

  /// What is left at the end, an incomplete character as one U+FFFD; the decoder is as new afterwards, but for the
  /// count of unknown ids.
  /// Invalidates: the text ends with the next call
  std::string_view flush() {
    text_.clear();
    append_replacements(held_);
    if (!prompt_pending_) stream_.finish(text_);
    reset_state();
    return text_;
  }

  /// Goes on behind a prompt, none of whose text is given out: a character that it leaves incomplete is completed.
  /// Cost: looks at the last few ids, however long the prompt is
  void prime(std::span<const TokenId> prompt) {
    reset_state();
    // Three bytes tell whether a character is incomplete: any further back is finished or broken by now.
    std::size_t begin = prompt.size();
    for (std::size_t bytes = 0; begin > 0 && bytes < 3 && prompt.size() - begin < prime_limit;) {
      bytes += known_bytes(prompt[--begin]);
    }
    for (const TokenId id : prompt.subspan(begin)) {
      if (known_bytes(id) == 0) continue;
      const auto& bytes = tokenizer_->token_bytes(id);
      stream_.push(std::string_view(bytes), text_);
      at_start_ = false;
    }
    text_.clear();
    prompt_pending_ = stream_.pending() != 0;
  }

  /// As new; the count of unknown ids begins again.
  void reset() {
    reset_state();
    unknown_ids_ = 0;
  }

  /// Ids outside the vocabulary that were pushed since the last reset.
  std::size_t unknown_ids() const { return unknown_ids_; }

 private:
  // Special tokens give no bytes; a prompt may end in a few of them, hardly in more than this.
  static constexpr std::size_t prime_limit = 256;

  void reset_state() {
    stream_ = {};
    held_ = 0;
    settled_ = 0;
    last_ = {};
    at_start_ = true;
    prompt_pending_ = false;
  }

  std::size_t known_bytes(TokenId id) const {
    if (id < 0 || id >= static_cast<Index>(tokenizer_->vocab_size())) return 0;
    const auto& bytes = tokenizer_->token_bytes(id);
    return std::string_view(bytes).size();
  }

  void append(std::string_view bytes) {
    if (at_start_ && !bytes.empty()) {
      at_start_ = false;
      if (strips_leading_space() && bytes.front() == ' ') bytes.remove_prefix(1);
    }
    if (bytes.empty()) return;
    finish_character(bytes);
    stream_.push(bytes, text_);
    last_.open = stream_.pending() != 0;
  }

  // The character that was left incomplete is completed by the first bytes, or broken off by them.
  void finish_character(std::string_view& bytes) {
    const std::size_t all = bytes.size();
    last_.decides = stream_.pending() != 0;
    while (stream_.pending() != 0 && !bytes.empty()) {
      if (stream_.continues(bytes.front())) {
        stream_.push(bytes.substr(0, 1), text_);
        bytes.remove_prefix(1);
      } else {
        // If it began in the prompt, its U+FFFD is the prompt's text. If none of its bytes are this token's, it is not its
        // text.
        if (prompt_pending_) {
          stream_ = {};
        } else {
          stream_.finish(text_);
        }
        if (bytes.size() == all) last_.begin = settled_ + text_.size();
      }
    }
    last_.resolved = settled_ + text_.size();
    last_.decides = last_.decides && stream_.pending() == 0;
    prompt_pending_ = prompt_pending_ && stream_.pending() != 0;
  }

  bool strips_leading_space() const {
    if constexpr (requires { tokenizer_->strips_leading_space(); }) {
      return tokenizer_->strips_leading_space();
    } else {
      return false;
    }
  }

  // Cuts U+FFFDs off the end of the piece and counts them; puts those that waited before it if a character follows them.
  void hold_replacements() {
    const std::size_t trailing = trailing_replacements(text_);
    const std::size_t trailing_bytes = trailing * replacement_character.size();
    if (trailing_bytes == text_.size()) {
      held_ += trailing;
      text_.clear();
      return;
    }
    text_.resize(text_.size() - trailing_bytes);
    if (held_ != 0) {
      const std::size_t own = text_.size();
      append_replacements(held_);
      std::rotate(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(own), text_.end());
    }
    held_ = trailing;
  }

  void append_replacements(std::size_t count) {
    for (; count > 0; --count) text_ += replacement_character;
  }

  const Tokenizer* tokenizer_;
  Replacement replacement_;
  Utf8Stream stream_;
  std::string text_;         // the last piece
  std::size_t held_ = 0;     // U+FFFDs that wait for a character after them
  std::size_t settled_ = 0;  // bytes given out or held: the text so far but for an incomplete character
  TokenSpan last_;           // of the last id that was pushed
  std::size_t unknown_ids_ = 0;
  bool at_start_ = true;         // no text yet in this sequence, the prompt's included
  bool prompt_pending_ = false;  // the incomplete character in stream_ began in the prompt
};

}  // namespace tinyllm
