// SPDX-License-Identifier: Apache-2.0
//
// SentencePiece's merging: neighbouring pieces join as long as the vocabulary holds what they make, best score first.
//
//     engine::Spm spm(pieces, scores, byte_tokens, unknown);
//     spm.encode(" Hello", ids);              // appends; spaces are plain spaces here, not U+2581
//
// Errors: none. A character without a token becomes the tokens of its bytes, or, where a byte has none, the unknown token
// if there is one and nothing otherwise.
// Lifetime: `pieces` must outlive the object.
// Threads: encode() may be called from several threads at once.
// Cost: O(n log n) in the text's characters.

#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "string_pool.hpp"

namespace engine {

class Spm {
 public:
  // byte_tokens: the token of each byte, -1 where there is none. scores: one a token.
  Spm(const StringPool& pieces, std::vector<float> scores, const std::array<std::int32_t, 256>& byte_tokens,
      std::optional<std::int32_t> unknown);

  void encode(std::string_view text, std::vector<std::int32_t>& ids) const;

 private:
  const StringPool* pieces_;
  std::vector<float> scores_;
  std::array<std::int32_t, 256> byte_tokens_;
  std::optional<std::int32_t> unknown_;
};

}  // namespace engine
