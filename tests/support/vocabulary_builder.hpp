// SPDX-License-Identifier: Apache-2.0
//
// Small vocabularies for tokenizer tests, random texts, and merging done the slow and obvious way.
//
//     auto vocabulary = test_support::bytes_only();                   // token n is byte n
//     std::int32_t ab = vocabulary.merge("a", "b");
//     engine::Tokenizer tokenizer = test_support::open(vocabulary.byte_level("gpt-2"));
//
// Errors: open() throws what the tokenizer throws.
// Lifetime: everything is copied.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "byte_map.hpp"
#include "gguf.hpp"
#include "support/gguf_writer.hpp"
#include "tokenizer.hpp"
#include "utf8_scan.hpp"

namespace test_support {

using engine::Gguf;
using engine::Tokenizer;
using Ids = std::vector<std::int32_t>;
using Words = std::vector<std::string>;

inline constexpr std::int32_t normal = 1;
inline constexpr std::int32_t unknown = 2;
inline constexpr std::int32_t control = 3;
inline constexpr std::int32_t user_defined = 4;
inline constexpr std::int32_t byte_token = 6;

inline std::string mapped(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) engine::append_utf8(text, engine::byte_map::characters[static_cast<unsigned char>(c)]);
  return text;
}

inline Tokenizer open(const GgufWriter& writer) {
  const Bytes bytes = writer.bytes();
  return Tokenizer(Gguf{std::span<const std::byte>(bytes)});
}

// A vocabulary under construction: its tokens as the file writes them.
struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  std::vector<float> scores;
  std::vector<std::string> merges;

  std::int32_t add(const std::string& text, std::int32_t type = normal, float score = 0.0F) {
    tokens.push_back(text);
    types.push_back(type);
    scores.push_back(score);
    return static_cast<std::int32_t>(tokens.size()) - 1;
  }

  // The 256 single bytes; token n is byte n.
  void add_bytes() {
    for (int byte = 0; byte < 256; ++byte) add(mapped(std::string(1, static_cast<char>(static_cast<unsigned char>(byte)))));
  }

  // A merge of two pieces, given as bytes, and the token that it makes unless that is there.
  std::int32_t merge(const std::string& left, const std::string& right) {
    merges.push_back(mapped(left) + " " + mapped(right));
    const auto at = std::find(tokens.begin(), tokens.end(), mapped(left + right));
    return at == tokens.end() ? add(mapped(left + right)) : static_cast<std::int32_t>(at - tokens.begin());
  }

  [[nodiscard]] GgufWriter byte_level(std::string_view pre) const {
    GgufWriter writer;
    writer.string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", pre)
        .strings("tokenizer.ggml.tokens", tokens)
        .array("tokenizer.ggml.token_type", types)
        .strings("tokenizer.ggml.merges", merges);
    return writer;
  }

  [[nodiscard]] GgufWriter sentencepiece() const {
    GgufWriter writer;
    writer.string("tokenizer.ggml.model", "llama")
        .strings("tokenizer.ggml.tokens", tokens)
        .array("tokenizer.ggml.token_type", types)
        .array("tokenizer.ggml.scores", scores);
    return writer;
  }
};

inline Vocabulary bytes_only() {
  Vocabulary vocabulary;
  vocabulary.add_bytes();
  return vocabulary;
}

// <unk>, <s>, </s> and the 256 byte tokens, as SentencePiece's vocabularies begin. Byte b is token 3 + b.
inline Vocabulary sentencepiece_start() {
  Vocabulary vocabulary;
  vocabulary.add("<unk>", unknown);
  vocabulary.add("<s>", control);
  vocabulary.add("</s>", control);
  for (unsigned byte = 0; byte < 256; ++byte) {
    constexpr std::string_view digits = "0123456789ABCDEF";
    vocabulary.add(std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">", byte_token);
  }
  return vocabulary;
}

inline std::string random_bytes(std::mt19937& random, std::size_t size) {
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(static_cast<unsigned char>(random() & 0xFF));
  return text;
}

inline std::string random_unicode(std::mt19937& random, std::size_t size) {
  constexpr char32_t ranges[][2] = {{0x09, 0x0D},       {0x20, 0x20},     {0x20, 0x7E},     {0x30, 0x39},
                                    {0x80, 0x24F},      {0x300, 0x36F},   {0x400, 0x4FF},   {0x2000, 0x2070},
                                    {0x3000, 0x30FF},   {0x4E00, 0x9FFF}, {0xE000, 0xFFFD}, {0x1F300, 0x1FAFF},
                                    {0x10000, 0x10FFFF}};
  std::string text;
  for (std::size_t i = 0; i < size; ++i) {
    const auto& range = ranges[random() % std::size(ranges)];
    engine::append_utf8(text, range[0] + static_cast<char32_t>(random()) % (range[1] - range[0] + 1));
  }
  return text;
}

// Joins, as long as there is one, the best pair of neighbours: `better(a, b)` says whether pair a comes before pair b.
template <class Rank>
Words joined_naively(Words pieces, const Rank& rank) {
  for (;;) {
    std::size_t best = pieces.size();
    double best_rank = 0;
    for (std::size_t i = 0; i + 1 < pieces.size(); ++i) {
      const auto r = rank(pieces[i], pieces[i + 1]);
      if (r && (best == pieces.size() || *r < best_rank)) {
        best = i;
        best_rank = *r;
      }
    }
    if (best == pieces.size()) return pieces;
    pieces[best] += pieces[best + 1];
    pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

inline Words characters(std::string_view text) {
  Words result;
  for (std::size_t at = 0; at < text.size(); at += result.back().size()) {
    result.emplace_back(text.substr(at, engine::code_point_at(text, at).length));
  }
  return result;
}

}  // namespace test_support
