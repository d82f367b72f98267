// SPDX-License-Identifier: Apache-2.0
// WindowDecoder: ids to text through a tokenizer that only has decode(ids), the general path of IncrementalDecoder.
//
//     WindowDecoder decoder(tokenizer);                // tokenizer.decode(std::vector<TokenId>)
//     std::string_view piece = decoder.push(id);       // valid until the next call
//
// It decodes a short window of ids, whose first part is shown already and serves as context, and gives out the difference.
// The window is bounded, also when nothing becomes printable. Text that a tokenizer changes afterwards is never taken back.
// The tokenizer must outlive the decoder and its copies.
#pragma once

#include <tinyllm/core/types.hpp>
#include <tinyllm/text/token_span.hpp>
#include <tinyllm/text/tokenizer.hpp>
#include <tinyllm/text/utf8.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tinyllm {

template <IdsTokenizer Tokenizer>
class WindowDecoder {
 public:
  explicit WindowDecoder(const Tokenizer& tokenizer, Replacement replacement = Replacement::wait)
      : tokenizer_(&tokenizer), replacement_(replacement) {}
  explicit WindowDecoder(const Tokenizer&&, Replacement = Replacement::wait) = delete;  // it would not outlive us

  /// The text that became final. Ids outside the vocabulary (negative, at or past `vocab_size()` if there is one, or
  /// refused by `decode` with a std::logic_error) give none and are counted.
  /// Invalidates: the piece ends with the next call
  std::string_view push(TokenId id) {
    piece_.clear();
    last_ = {settled_, settled_, settled_, false, false};
    const std::string before = text_;
    if (!add(id)) {
      ++unknown_ids_;
      return piece_;
    }
    settle(before);
    release(final_size());
    if (window_.size() >= window_limit) shrink();
    return piece_;
  }

  /// Where the text of the last id that was pushed stands in the text of all ids. A U+FFFD at the end counts as a character
  /// that is incomplete: what it stands for cannot be seen in the text.
  const TokenSpan& last_span() const { return last_; }

  /// What is left at the end; the decoder is as new afterwards, but for the count of unknown ids.
  /// Invalidates: the text ends with the next call
  std::string_view flush() {
    piece_.clear();
    if (text_.size() > shown_) {
      release(text_.size());
    } else {
      append_replacements(held_);
    }
    reset_state();
    return piece_;
  }

  /// Goes on behind a prompt, none of whose text is given out: a character that it leaves incomplete is completed.
  /// Cost: looks at the last few ids, however long the prompt is
  void prime(std::span<const TokenId> prompt) {
    reset_state();
    for (const TokenId id : prompt.last(std::min(prompt.size(), window_limit - 1))) add(id);
    shown_ = text_.size();
    prompt_open_ = text_.ends_with(replacement_character);
  }

  /// As new; the count of unknown ids begins again.
  void reset() {
    reset_state();
    unknown_ids_ = 0;
  }

  /// Ids outside the vocabulary that were pushed since the last reset.
  std::size_t unknown_ids() const { return unknown_ids_; }

 private:
  // A window is cut at `window_limit` ids to one that keeps at least `context` of them: a character has at most four bytes,
  // and so many tokens of text. `hard_limit` is for tokenizers whose text falls apart nowhere.
  static constexpr std::size_t window_limit = 16;
  static constexpr std::size_t context = 4;
  static constexpr std::size_t hard_limit = 4 * window_limit;

  void reset_state() {
    window_.clear();
    text_.clear();
    shown_ = 0;
    held_ = 0;
    settled_ = 0;
    last_ = {};
    prompt_open_ = false;
  }

  bool known(TokenId id) const {
    if constexpr (requires { tokenizer_->vocab_size(); }) {
      if (id >= static_cast<Index>(tokenizer_->vocab_size())) return false;
    }
    return id >= 0;
  }

  // Decodes the window with one more id; false, and nothing changed, if there is no such id.
  bool add(TokenId id) {
    if (!known(id)) return false;
    window_.push_back(id);
    try {
      text_ = decode(window_);
      return true;
    } catch (const std::logic_error&) {
      window_.pop_back();
      return false;
    } catch (...) {
      window_.pop_back();
      throw;
    }
  }

  // The text of ids, well-formed also if the tokenizer gives out the bytes as they are.
  std::string decode(const std::vector<TokenId>& ids) const {
    std::string text;
    Utf8Stream utf8;
    utf8.push(std::string(tokenizer_->decode(ids)), text);
    utf8.finish(text);
    return text;
  }

  // Bytes of text_ that no later id changes. Under `eager` one U+FFFD waits all the same: whether it stands for an
  // incomplete character cannot be seen in the text.
  std::size_t final_size() const {
    std::size_t waiting = trailing_replacements(text_);
    if (replacement_ == Replacement::eager) waiting = std::min<std::size_t>(waiting, 1);
    return text_.size() - waiting * replacement_character.size();
  }

  // What the last id did to the text, which was `before`.
  void settle(std::string_view before) {
    constexpr std::size_t tail = replacement_character.size();
    const bool had_tail = before.ends_with(replacement_character);
    const bool changed = text_ != before;
    const bool broken = text_.starts_with(before);  // a U+FFFD that stays one was no beginning of a character
    bool was_open = had_tail;
    if (prompt_open_ && changed) {
      // The prompt's last character is decided: completed, it is ours to show; broken off, its U+FFFD is the prompt's.
      was_open = !broken;
      if (!broken) shown_ -= tail;
      prompt_open_ = false;
    }
    const bool is_open = text_.ends_with(replacement_character);
    const std::size_t start = before.size() - (was_open ? tail : 0);  // of the character that was open
    const std::size_t stable = text_.size() - (is_open ? tail : 0);
    last_.decides = had_tail && changed;
    last_.resolved = settled_;
    if (changed && stable > start) {
      std::size_t first = 1;  // size of the character that stands where the open one did
      while (start + first < stable && is_continuation(text_[start + first])) ++first;
      if (was_open) last_.resolved = settled_ + first;
      if (broken) last_.begin = last_.resolved;  // what was broken off belongs to the ids before
      settled_ += stable - start;
    }
    last_.end = settled_;
    last_.open = is_open && (had_tail || changed);
  }

  // Gives out text_[shown_, end), and before it the U+FFFDs that waited outside the window.
  void release(std::size_t end) {
    while (shown_ < end && is_continuation(text_[shown_])) ++shown_;  // only after a tokenizer changed its mind
    if (shown_ >= end) return;
    append_replacements(held_);
    held_ = 0;
    piece_.append(text_, shown_, end - shown_);
    shown_ = end;
  }

  void shrink() {
    if (trailing_replacements(text_) == 0) {
      cut_behind_text();
    } else {
      cut_inside_replacements();
    }
    if (window_.size() >= window_limit) drop_empty_ids();
    if (window_.size() >= hard_limit) keep_last(window_.size() - window_limit / 2, {});
  }

  // Everything is shown, so what stays is context: any tail of the window that decodes to the tail of its text.
  void cut_behind_text() {
    for (std::size_t drop = window_.size() - context; drop > 0; --drop) {
      std::string tail = decode_from(drop);
      if (!tail.empty() && text_.ends_with(tail)) return keep_last(drop, std::move(tail));
    }
  }

  // The text ends in U+FFFDs. Those whose bytes cannot change any more leave the window: it may be cut where both parts
  // decode to the whole, because an incomplete character across the cut would give one U+FFFD and not two.
  void cut_inside_replacements() {
    for (std::size_t drop = window_.size() - context; drop > 0; --drop) {
      std::string tail = decode_from(drop);
      if (tail.empty() || !text_.ends_with(tail)) continue;
      const std::vector<TokenId> front(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(drop));
      if (decode(front) + tail == text_) return keep_last(drop, std::move(tail));
    }
  }

  // Tokens without text, such as special ones, are no context.
  void drop_empty_ids() {
    std::vector<TokenId> kept;
    for (const TokenId id : window_) {
      if (!decode({id}).empty()) kept.push_back(id);
    }
    if (kept.size() < window_.size() && decode(kept) == text_) window_ = std::move(kept);
  }

  // Drops the first ids of the window, whose text becomes `tail`; U+FFFDs that are not shown yet wait as a number.
  void keep_last(std::size_t drop, std::string tail) {
    if (tail.empty()) tail = decode_from(drop);
    window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(drop));
    const std::size_t gone = text_.size() - std::min(text_.size(), tail.size());
    if (gone > shown_) {
      held_ += trailing_replacements(std::string_view(text_).substr(shown_, gone - shown_));
      shown_ = 0;
    } else {
      shown_ -= gone;
    }
    text_ = std::move(tail);
    shown_ = std::min(shown_, text_.size());
  }

  std::string decode_from(std::size_t drop) const {
    return decode(std::vector<TokenId>(window_.begin() + static_cast<std::ptrdiff_t>(drop), window_.end()));
  }

  static bool is_continuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

  void append_replacements(std::size_t count) {
    for (; count > 0; --count) piece_ += replacement_character;
  }

  const Tokenizer* tokenizer_;
  Replacement replacement_;
  std::vector<TokenId> window_;
  std::string text_;          // decode(window_)
  std::size_t shown_ = 0;     // bytes of text_ that were given out or belong to the prompt
  std::size_t held_ = 0;      // U+FFFDs before text_ that wait for a character after them
  std::size_t settled_ = 0;   // bytes of the text of all ids but for a U+FFFD at its end
  TokenSpan last_;            // of the last id that was pushed
  std::string piece_;         // the last piece
  bool prompt_open_ = false;  // the U+FFFD at the end of text_ is the prompt's, and may still be completed
  std::size_t unknown_ids_ = 0;
};

}  // namespace tinyllm
