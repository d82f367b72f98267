// SPDX-License-Identifier: Apache-2.0
// IncrementalDecoder: the text of a sequence of ids, piece by piece as they arrive.
//
//     IncrementalDecoder decoder(tokenizer);
//     for (TokenId id : ids) show(decoder.push(id));           // "é" waits for both of its bytes
//     show(decoder.flush());
//
// The pieces followed by the flush equal decode(all ids), for every list of ids. Every piece is final and well-formed UTF-8,
// and by default none ends in U+FFFD. A tokenizer that gives bytes is decoded by bytes, any other through a window.
// The tokenizer must outlive the decoder. Copies are independent and cheap.
#pragma once

#include <tinyllm/core/types.hpp>
#include <tinyllm/text/byte_decoder.hpp>
#include <tinyllm/text/token_span.hpp>
#include <tinyllm/text/tokenizer.hpp>
#include <tinyllm/text/utf8.hpp>
#include <tinyllm/text/window_decoder.hpp>

#include <cstddef>
#include <span>
#include <string_view>

namespace tinyllm {

namespace detail {

template <class Tokenizer>
struct DecoderOf {
  using type = WindowDecoder<Tokenizer>;
};
template <ByteTokenizer Tokenizer>
struct DecoderOf<Tokenizer> {
  using type = ByteDecoder<Tokenizer>;
};

}  // namespace detail

template <Detokenizer Tokenizer>
class IncrementalDecoder {
 public:
  explicit IncrementalDecoder(const Tokenizer& tokenizer, Replacement replacement = Replacement::wait)
      : decoder_(tokenizer, replacement) {}
  explicit IncrementalDecoder(const Tokenizer&&, Replacement = Replacement::wait) = delete;  // it would not outlive us

  /// The text that became final with this id. Ids outside the vocabulary give none, and no error.
  /// Invalidates: the piece ends with the next call
  [[nodiscard]] std::string_view push(TokenId id) { return decoder_.push(id); }

  /// What is left at the end; the decoder is as new afterwards, but for the count of unknown ids.
  /// Invalidates: the text ends with the next call
  [[nodiscard]] std::string_view flush() { return decoder_.flush(); }

  /// Starts afresh behind a prompt, also one that ends inside a character. Its own text is never given out.
  /// Cost: looks at the last few ids
  void prime(std::span<const TokenId> prompt) { decoder_.prime(prompt); }

  /// As new.
  void reset() { decoder_.reset(); }

  /// Where the text of the last id that was pushed stands in the text of all ids.
  const TokenSpan& last_span() const { return decoder_.last_span(); }

  /// Ids outside the vocabulary that were pushed since the last reset.
  std::size_t unknown_ids() const { return decoder_.unknown_ids(); }

 private:
  typename detail::DecoderOf<Tokenizer>::type decoder_;
};

}  // namespace tinyllm
