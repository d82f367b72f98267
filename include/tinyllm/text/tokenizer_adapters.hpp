// SPDX-License-Identifier: Apache-2.0
// Adapters for tokenizers that other libraries bring: pieces as SentencePiece writes them, and plain functions.
//
//     SentencePieceAdapter tokenizer(processor.GetPieceSize(), [&](TokenId id) { return processor.IdToPiece(id); });
//     FunctionTokenizer tokenizer(encode, decode);      // any two callables
//
// Both are small values; what they are made from is only looked at during construction (pieces) or must live on (functions).
#pragma once

#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

#include <concepts>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tinyllm {

/// What a SentencePieceAdapter is told besides its pieces.
struct SentencePieceOptions {
  std::function<bool(TokenId)> hidden = {};                           ///< which ids are not shown, such as <s>; none: all are
  std::function<std::vector<TokenId>(std::string_view)> encode = {};  ///< text to ids, for those who generate
  bool strips_leading_space = true;                                   ///< false for a model without add_dummy_prefix
};

/// Bytes of a SentencePiece vocabulary: U+2581 is a space, <0xE4> the byte E4, and the text's one leading space is none of it.
/// Source: Kudo and Richardson, "SentencePiece", 2018; its byte_fallback and add_dummy_prefix options.
class SentencePieceAdapter {
 public:
  /// `piece(id)` gives the piece of each id in [0, vocab_size) as a string.
  template <std::invocable<TokenId> Piece>
  SentencePieceAdapter(Index vocab_size, const Piece& piece, SentencePieceOptions options = {}) : options_(std::move(options)) {
    bytes_.reserve(static_cast<std::size_t>(vocab_size));
    for (TokenId id = 0; id < static_cast<TokenId>(vocab_size); ++id) {
      bytes_.push_back(options_.hidden && options_.hidden(id) ? std::string() : bytes_of(piece(id)));
    }
  }

  Index vocab_size() const { return static_cast<Index>(bytes_.size()); }
  /// Pre: 0 <= id < vocab_size()
  std::string_view token_bytes(TokenId id) const { return bytes_[static_cast<std::size_t>(id)]; }
  bool strips_leading_space() const { return options_.strips_leading_space; }
  /// Throws: std::logic_error if the adapter was made without `encode`.
  std::vector<TokenId> encode(std::string_view text) const {
    if (!options_.encode) throw std::logic_error("SentencePieceAdapter: made without encode");
    return options_.encode(text);
  }

 private:
  static std::string bytes_of(std::string_view piece) {
    if (piece.size() == 6 && piece.starts_with("<0x") && piece.ends_with('>')) {
      const int high = hex_digit(piece[3]);
      const int low = hex_digit(piece[4]);
      if (high >= 0 && low >= 0) return std::string(1, static_cast<char>(high * 16 + low));
    }
    constexpr std::string_view space = "\xE2\x96\x81";
    std::string bytes;
    for (std::size_t at = 0; at < piece.size();) {
      if (piece.substr(at).starts_with(space)) {
        bytes += ' ';
        at += space.size();
      } else {
        bytes += piece[at++];
      }
    }
    return bytes;
  }

  static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
  }

  SentencePieceOptions options_;
  std::vector<std::string> bytes_;
};

/// A tokenizer made of two functions: text to ids, and ids to text.
class FunctionTokenizer {
 public:
  using Encode = std::function<std::vector<TokenId>(std::string_view)>;
  using Decode = std::function<std::string(const std::vector<TokenId>&)>;

  /// Throws: std::invalid_argument if one of them is empty.
  FunctionTokenizer(Encode encode, Decode decode) : encode_(std::move(encode)), decode_(std::move(decode)) {
    if (!encode_ || !decode_) throw std::invalid_argument("FunctionTokenizer: encode and decode must be callable");
  }

  std::vector<TokenId> encode(std::string_view text) const { return encode_(text); }
  std::string decode(const std::vector<TokenId>& ids) const { return decode_(ids); }

 private:
  Encode encode_;
  Decode decode_;
};

}  // namespace tinyllm
