// SPDX-License-Identifier: Apache-2.0
// TextStream: ids in, text that a client may see out: the decoder, the stop strings and whole graphemes, one behind the other.
//
//     TextStream stream(tokenizer, {.stop = {"\n\n"}});
//     for (TokenId id : ids) { send(stream.push(id)); if (stream.stopped()) break; }
//     send(stream.finish());            // at EOS or at the last token; gives nothing more after a stop
//
// What came out is never taken back. The tokenizer must outlive the stream.
#pragma once

#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>
#include <tinyllm/text/grapheme_stream.hpp>
#include <tinyllm/text/incremental_decoder.hpp>
#include <tinyllm/text/stop_matcher.hpp>
#include <tinyllm/text/token_span.hpp>
#include <tinyllm/text/tokenizer.hpp>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tinyllm {

/// How much of the last character may be shown.
enum class Clusters {
  any,    ///< whole code points: an accent or the second half of an emoji may come later
  whole,  ///< whole graphemes: the last one waits until something follows it
};

/// What a stream does between decoder and client.
struct TextStreamOptions {
  std::vector<std::string> stop = {};  ///< text ends before the first of these
  bool include_stop = false;           ///< text ends behind it instead
  Index min_tokens = 0;                ///< the text of so many ids goes out unmatched; matching starts after them
  Replacement replacement = Replacement::wait;
  Clusters clusters = Clusters::any;
};

template <Detokenizer Tokenizer>
class TextStream {
 public:
  /// What came of several ids at once.
  struct Pushed {
    std::string_view text;  ///< ends with the next call
    std::size_t used;       ///< ids that were taken: all, or up to and with the one that completed a stop
  };

  /// Throws: std::invalid_argument for a stop that is empty or not well-formed UTF-8.
  explicit TextStream(const Tokenizer& tokenizer, TextStreamOptions options = {})
      : decoder_(tokenizer, options.replacement),
        matcher_(options.stop),
        include_stop_(options.include_stop),
        clusters_(options.clusters),
        unmatched_ids_(options.min_tokens) {
    find_hidden_stops(tokenizer, options.stop);
  }
  explicit TextStream(const Tokenizer&&, TextStreamOptions = {}) = delete;  // it would not outlive us

  /// Goes on behind a prompt, none of whose text is given out.
  void prime(std::span<const TokenId> prompt) { decoder_.prime(prompt); }

  /// The text that became final with this id.
  /// Pre: not stopped(), and finish() was not called
  /// Invalidates: the text ends with the next call
  [[nodiscard]] std::string_view push(TokenId id) { return push(std::span(&id, 1)).text; }

  /// The text that became final with these ids, as after a speculative step: the first stop ends them.
  /// Pre: not stopped(), and finish() was not called
  [[nodiscard]] Pushed push(std::span<const TokenId> ids) {
    TINYLLM_ASSERT(!over_);
    final_.clear();
    std::size_t used = 0;
    while (used < ids.size() && !stopped()) take(ids[used++]);
    return {released(), used};
  }

  /// What is left when no more ids come: it goes through the stop strings too.
  /// Invalidates: the text ends with the next call
  [[nodiscard]] std::string_view finish() {
    final_.clear();
    if (!stopped() && !match(decoder_.flush())) matcher_.flush(final_);
    over_ = true;
    return released();
  }

  /// True once a stop string is complete: the text is over.
  bool stopped() const { return matched_.has_value(); }
  /// The stop string that ended the text.
  const std::optional<std::string>& matched() const { return matched_; }
  /// Ids outside the vocabulary that were pushed.
  std::size_t unknown_ids() const { return decoder_.unknown_ids(); }

  /// Where each id that was pushed stands in the text that came out.
  /// Units: bytes
  /// Pre: stopped() or finish() was called
  std::vector<TextRange> ranges() const {
    TextRanges copy = ranges_;
    copy.close(size_);
    return std::move(copy).take();
  }
  /// Room for so many ids, so that pushing them allocates nothing.
  void reserve(std::size_t ids) { ranges_.reserve(ids); }

 private:
  // A stop that is the text of a token which is not shown (a special one) can only be seen as an id.
  void find_hidden_stops(const Tokenizer& tokenizer, const std::vector<std::string>& stops) {
    if constexpr (requires { *tokenizer.token_to_id(std::string_view()); }) {
      for (const std::string& stop : stops) {
        const auto id = tokenizer.token_to_id(stop);
        if (id && IncrementalDecoder(tokenizer).push(*id).empty()) hidden_stops_.emplace_back(*id, stop);
      }
    }
  }

  const std::string* hidden_stop(TokenId id) const {
    for (const auto& [stop_id, text] : hidden_stops_) {
      if (stop_id == id) return &text;
    }
    return nullptr;
  }

  void take(TokenId id) {
    const std::string_view text = decoder_.push(id);
    ranges_.add(decoder_.last_span());
    if (unmatched_ids_ > 0) {
      --unmatched_ids_;
      final_ += text;
    } else if (const std::string* stop = hidden_stop(id); stop == nullptr) {
      match(text);
    } else if (!match(decoder_.flush())) {
      matcher_.flush(final_);
      end_at(*stop);
    }
  }

  bool match(std::string_view text) {
    if (!matcher_.push(text, final_)) return false;
    end_at(*matcher_.matched());
    return true;
  }

  void end_at(std::string_view stop) {
    matched_ = stop;
    if (include_stop_) final_ += stop;
    over_ = true;
  }

  // What of final_ may be seen now.
  std::string_view released() {
    if (clusters_ == Clusters::whole) {
      whole_.clear();
      graphemes_.push(final_, whole_);
      if (over_) graphemes_.flush(whole_);
      final_.swap(whole_);
    }
    size_ += final_.size();
    return final_;
  }

  IncrementalDecoder<Tokenizer> decoder_;
  StopMatcher matcher_;
  GraphemeStream graphemes_;
  bool include_stop_;
  Clusters clusters_;
  Index unmatched_ids_;
  std::vector<std::pair<TokenId, std::string>> hidden_stops_;
  std::optional<std::string> matched_;
  bool over_ = false;
  TextRanges ranges_;
  std::size_t size_ = 0;  // bytes that came out
  std::string final_;     // the last text
  std::string whole_;     // its part that ends at a grapheme's end
};

}  // namespace tinyllm
