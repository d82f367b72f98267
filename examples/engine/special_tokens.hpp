// SPDX-License-Identifier: Apache-2.0
//
// The tokens that are recognised in text as they are written, before anything else is done to it.
//
//     engine::SpecialTokens specials;
//     specials.add("<|im_end|>", {.id = 2});
//     auto match = specials.next(text, 0, true);      // the leftmost, of those at one place the longest
//
// Errors: none; an empty text is never matched, and of two equal texts the first one added stays.
// Lifetime: the texts are copied.
// Threads: const members may be called from several threads at once.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "pair_table.hpp"

namespace engine {

class SpecialTokens {
 public:
  struct Token {
    std::int32_t id = -1;
    bool control = true;                // recognised only when control tokens are asked for
    bool swallows_space_after = false;  // white space that follows it is no part of the text
  };

  struct Match {
    std::size_t start;
    std::size_t size;
    Token token;
  };

  void add(std::string_view text, Token token) {
    if (text.empty()) {
      return;
    }
    std::int32_t node = 0;
    for (const char c : text) {
      const auto next = static_cast<std::int32_t>(nodes_.size());
      if (edges_.insert(node, static_cast<unsigned char>(c), next)) {
        nodes_.push_back({});
      }
      node = *edges_.find(node, static_cast<unsigned char>(c));
    }
    starts_[static_cast<unsigned char>(text.front())] = true;
    if (nodes_[static_cast<std::size_t>(node)].id < 0) {
      nodes_[static_cast<std::size_t>(node)] = token;
    }
  }

  // The first match that starts at `from` or later.
  [[nodiscard]] std::optional<Match> next(std::string_view text, std::size_t from, bool with_control) const {
    for (std::size_t start = from; start < text.size(); ++start) {
      if (!starts_[static_cast<unsigned char>(text[start])]) {
        continue;
      }
      std::optional<Match> longest;
      std::int32_t node = 0;
      for (std::size_t at = start; at < text.size(); ++at) {
        const std::int32_t* const edge = edges_.find(node, static_cast<unsigned char>(text[at]));
        if (edge == nullptr) {
          break;
        }
        node = *edge;
        const Token& token = nodes_[static_cast<std::size_t>(node)];
        if (token.id >= 0 && (with_control || !token.control)) {
          longest = Match{start, at + 1 - start, token};
        }
      }
      if (longest) {
        return longest;
      }
    }
    return std::nullopt;
  }

 private:
  std::array<bool, 256> starts_{};
  std::vector<Token> nodes_ = std::vector<Token>(1);  // of a trie; node 0 is its root
  PairTable<std::int32_t> edges_;                     // (node, byte) to node
};

}  // namespace engine
