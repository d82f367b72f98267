// SPDX-License-Identifier: Apache-2.0
//
// The tokens of a GGUF file: their texts, the bytes that they add to the output, their kinds and the special ids.
//
//     engine::Vocabulary vocabulary(file);
//     vocabulary.pieces[id];                       // " the" where the file says "Ġthe" or "▁the"
//     vocabulary.texts.find("<|im_end|>");
//
// Errors: FileError for a vocabulary of another kind, arrays that are too short, or no tokens at all.
// Lifetime: everything is copied out of the file.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "gguf.hpp"
#include "string_pool.hpp"

namespace engine {

// The numbers are the file format's.
enum class TokenType : std::uint8_t {
  undefined = 0,
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};

struct Vocabulary {
  enum class Kind { byte_level_bpe, sentencepiece };

  explicit Vocabulary(const Gguf& file);

  [[nodiscard]] TokenType type(std::int32_t id) const { return types[static_cast<std::size_t>(id)]; }

  Kind kind;
  std::int32_t size = 0;
  StringPool texts;   // as the file writes them; the lowest id of equal ones is findable
  StringPool pieces;  // the bytes shown; findable: those of tokens that may stand for plain text
  std::vector<TokenType> types;
  std::vector<float> scores;                  // one a token, 0 without scores in the file
  std::array<std::int32_t, 256> byte_tokens;  // of SentencePiece's <0xXX>; -1 where there is none
  std::optional<std::int32_t> bos;
  std::optional<std::int32_t> eos;
  std::optional<std::int32_t> unknown;
  std::vector<std::int32_t> end_ids;  // every token that ends an answer
};

}  // namespace engine
