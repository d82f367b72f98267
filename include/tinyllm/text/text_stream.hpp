// SPDX-License-Identifier: Apache-2.0
// TextStream: ids in, text that a client may see out: the decoder and the stop strings, one behind the other.
//
//     TextStream stream(tokenizer, {.stop = {"\n\n"}});
//     for (TokenId id : ids) { send(stream.push(id)); if (stream.stopped()) break; }
//     send(stream.finish());            // at EOS or at the last token; gives nothing more after a stop
//
// What came out is never taken back. The tokenizer must outlive the stream.
#pragma once

#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>
#include <tinyllm/text/incremental_decoder.hpp>
#include <tinyllm/text/stop_matcher.hpp>
#include <tinyllm/text/tokenizer.hpp>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tinyllm {

struct TextStreamOptions {
  std::vector<std::string> stop;  ///< text ends before the first of these
  bool include_stop = false;      ///< text ends behind it instead
  Index min_tokens = 0;           ///< the text of so many ids goes out unmatched; matching starts after them
  Replacement replacement = Replacement::wait;
};

template <Detokenizer Tokenizer>
class TextStream {
 public:
  /// Throws: std::invalid_argument for a stop that is empty or not well-formed UTF-8.
  explicit TextStream(const Tokenizer& tokenizer, TextStreamOptions options = {})
      : decoder_(tokenizer, options.replacement),
        matcher_(options.stop),
        include_stop_(options.include_stop),
        unmatched_ids_(options.min_tokens) {
    find_hidden_stops(tokenizer, options.stop);
  }

  /// Goes on behind a prompt, none of whose text is given out.
  void prime(std::span<const TokenId> prompt) { decoder_.prime(prompt); }

  /// The text that became final with this id.
  /// Pre: not stopped()
  /// Invalidates: the text ends with the next call
  [[nodiscard]] std::string_view push(TokenId id) {
    TINYLLM_ASSERT(!stopped());
    out_.clear();
    if (unmatched_ids_ > 0) {
      --unmatched_ids_;
      out_ += decoder_.push(id);
    } else if (const std::string* stop = hidden_stop(id); stop != nullptr) {
      if (!match(decoder_.flush())) end_at_hidden(*stop);
    } else {
      match(decoder_.push(id));
    }
    return out_;
  }

  /// What is left when no more ids come: it goes through the stop strings too.
  /// Invalidates: the text ends with the next call
  [[nodiscard]] std::string_view finish() {
    out_.clear();
    if (!stopped() && !match(decoder_.flush())) matcher_.flush(out_);
    return out_;
  }

  /// True once a stop string is complete: the text is over.
  bool stopped() const { return matched_.has_value(); }
  /// The stop string that ended the text.
  const std::optional<std::string>& matched() const { return matched_; }
  /// Ids outside the vocabulary that were pushed.
  std::size_t unknown_ids() const { return decoder_.unknown_ids(); }

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

  void end_at_hidden(const std::string& stop) {
    matcher_.flush(out_);
    if (include_stop_) out_ += stop;
    matched_ = stop;
  }

  bool match(std::string_view text) {
    if (!matcher_.push(text, out_)) return false;
    matched_ = matcher_.matched();
    if (include_stop_) out_ += *matched_;
    return true;
  }

  IncrementalDecoder<Tokenizer> decoder_;
  StopMatcher matcher_;
  bool include_stop_;
  Index unmatched_ids_;
  std::vector<std::pair<TokenId, std::string>> hidden_stops_;
  std::optional<std::string> matched_;
  std::string out_;
};

}  // namespace tinyllm
