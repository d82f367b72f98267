// SPDX-License-Identifier: Apache-2.0
// Tokenizers whose tokens the test writes down: one that gives bytes, and wrappers that hide what a tokenizer can do.
#pragma once

#include <tinyllm/core/types.hpp>
#include <tinyllm/text/utf8.hpp>

#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace test_support {

using tinyllm::Index;
using tinyllm::TokenId;

/// UTF-8 of all bytes at once: what every decoder must come to in the end.
inline std::string decode_bytes(std::string_view bytes) {
  std::string text;
  tinyllm::Utf8Stream stream;
  stream.push(bytes, text);
  stream.finish(text);
  return text;
}

/// Bytes from hexadecimal digits.
inline std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

/// Token i is the i-th string of bytes. Encodes greedily: the longest token first.
class BytesTokenizer {
 public:
  explicit BytesTokenizer(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {}

  /// All 256 single bytes: id = byte.
  static BytesTokenizer of_all_bytes() {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    return BytesTokenizer(std::move(tokens));
  }

  Index vocab_size() const { return static_cast<Index>(tokens_.size()); }
  std::string_view token_bytes(TokenId id) const { return tokens_.at(static_cast<std::size_t>(id)); }

  std::string decode(const std::vector<TokenId>& ids) const {
    std::string bytes;
    for (const TokenId id : ids) {
      if (id >= 0 && id < vocab_size()) bytes += token_bytes(id);
    }
    return decode_bytes(bytes);
  }

  std::vector<TokenId> encode(std::string_view text) const {
    std::vector<TokenId> ids;
    while (!text.empty()) {
      TokenId best = -1;
      std::size_t length = 0;
      for (std::size_t id = 0; id < tokens_.size(); ++id) {
        if (tokens_[id].size() > length && text.starts_with(tokens_[id])) {
          best = static_cast<TokenId>(id);
          length = tokens_[id].size();
        }
      }
      if (best < 0) throw std::invalid_argument("the test's vocabulary has no token for this text");
      ids.push_back(best);
      text.remove_prefix(length);
    }
    return ids;
  }

 private:
  std::vector<std::string> tokens_;
};

/// The same tokenizer with nothing but a decode(ids) that gives out bytes as they are, well-formed or not.
class RawDecodeOnly {
 public:
  explicit RawDecodeOnly(const BytesTokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  std::string decode(const std::vector<TokenId>& ids) const {
    std::string bytes;
    for (const TokenId id : ids) {
      if (id >= 0 && id < tokenizer_->vocab_size()) bytes += tokenizer_->token_bytes(id);
    }
    return bytes;
  }

 private:
  const BytesTokenizer* tokenizer_;
};

/// The same tokenizer with nothing but decode(ids) and encode(text).
template <class Tokenizer>
class DecodeOnly {
 public:
  explicit DecodeOnly(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  std::string decode(const std::vector<TokenId>& ids) const {
    ++calls_;
    longest_ = std::max(longest_, ids.size());
    return tokenizer_->decode(ids);
  }
  std::vector<TokenId> encode(std::string_view text) const { return tokenizer_->encode(text); }

  std::size_t calls() const { return calls_; }
  std::size_t longest() const { return longest_; }

 private:
  const Tokenizer* tokenizer_;
  mutable std::size_t calls_ = 0;
  mutable std::size_t longest_ = 0;  // ids in one call
};

}  // namespace test_support
