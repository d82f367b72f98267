// SPDX-License-Identifier: Apache-2.0
//
// Byte-pair merging: the tokens of one word, found by joining its neighbouring pieces in the order of the merge list.
//
//     engine::Bpe bpe(pieces, vocab_size, merges, false);
//     engine::Bpe::Scratch scratch;
//     bpe.encode(" world", scratch, ids);       // appends
//
// Errors: FileError for a merge that is not two pieces with a space between them.
// Lifetime: `pieces` must outlive the object. The constructor appends to it the pieces that only merges name, numbered
// from vocab_size on; they come out as their bytes' tokens. A byte that has no token is left out.
// Threads: encode() may be called from several threads at once, each with a scratch of its own.
// Cost: O(n log n) in the word's bytes.

#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "pair_table.hpp"
#include "string_pool.hpp"

namespace engine {

class Bpe {
 public:
  // Memory that one encoding hands to the next.
  class Scratch {
    friend class Bpe;
    struct Symbol {
      std::int32_t piece;
      std::int32_t previous;
      std::int32_t next;
      std::uint32_t rank;   // of the merge with the next symbol; no_merge if there is none
      std::int32_t merged;  // what that merge gives
    };
    std::vector<Symbol> symbols;
    std::vector<std::uint64_t> queue;  // rank << 32 | symbol, the smallest on top
  };

  // pieces: number n holds the bytes of token n, findable if the token may stand for plain text.
  // merges: byte-mapped texts "left right", the one to be done first in front.
  Bpe(StringPool& pieces, std::int32_t vocab_size, std::span<const std::string_view> merges, bool takes_known_words_whole);

  // Appends the tokens of the word.
  void encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const;

 private:
  struct Merge {
    std::uint32_t rank;
    std::int32_t merged;
  };

  static constexpr std::uint32_t no_merge = 0xFFFFFFFF;

  void rank_pair(Scratch& scratch, std::int32_t left) const;
  void emit(std::int32_t piece, std::vector<std::int32_t>& ids) const;

  const StringPool* pieces_;
  std::int32_t vocab_size_;
  bool takes_known_words_whole_;
  std::array<std::int32_t, 256> byte_pieces_{};
  PairTable<Merge> merges_;
};

}  // namespace engine
