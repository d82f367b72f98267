// SPDX-License-Identifier: Apache-2.0

#include "spm.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <queue>
#include <utility>

#include "utf8_scan.hpp"

namespace engine {
namespace {

struct Symbol {
  std::size_t start;
  std::size_t size;  // bytes; 0 once it has become part of another
  std::int32_t previous;
  std::int32_t next;
};

struct Candidate {
  float score;
  std::int32_t left;
  std::int32_t right;
  std::size_t size;  // bytes of both together when it was queued

  // The queue's top is its largest element: the best score, the leftmost of equals.
  bool operator<(const Candidate& other) const { return score < other.score || (!(other.score < score) && left > other.left); }
};

}  // namespace

Spm::Spm(const StringPool& pieces, std::vector<float> scores, const std::array<std::int32_t, 256>& byte_tokens,
         std::optional<std::int32_t> unknown)
    : pieces_(&pieces), scores_(std::move(scores)), byte_tokens_(byte_tokens), unknown_(unknown) {
  for (float& score : scores_) {
    if (std::isnan(score)) {
      score = -std::numeric_limits<float>::infinity();  // an order needs comparable numbers
    }
  }
}

void Spm::encode(std::string_view text, std::vector<std::int32_t>& ids) const {
  std::vector<Symbol> symbols;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = code_point_at(text, at).length;
    const auto number = static_cast<std::int32_t>(symbols.size());
    symbols.push_back({at, size, number - 1, number + 1});
    at += size;
  }
  if (symbols.empty()) {
    return;
  }
  symbols.back().next = -1;
  const auto symbol = [&](std::int32_t i) -> Symbol& { return symbols[static_cast<std::size_t>(i)]; };

  std::priority_queue<Candidate> queue;
  const auto offer = [&](std::int32_t left, std::int32_t right) {
    if (left < 0 || right < 0) {
      return;
    }
    const std::size_t size = symbol(left).size + symbol(right).size;
    if (const std::int32_t token = pieces_->find(text.substr(symbol(left).start, size)); token >= 0) {
      queue.push({scores_[static_cast<std::size_t>(token)], left, right, size});
    }
  };
  for (std::int32_t i = 0; symbol(i).next >= 0; ++i) {
    offer(i, i + 1);
  }
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbol(best.left);
    Symbol& right = symbol(best.right);
    if (left.size == 0 || right.size == 0 || left.size + right.size != best.size) {
      continue;  // one of them has changed since
    }
    left.size = best.size;
    right.size = 0;
    left.next = right.next;
    if (left.next >= 0) {
      symbol(left.next).previous = best.left;
    }
    offer(left.previous, best.left);
    offer(best.left, left.next);
  }

  for (std::int32_t i = 0; i >= 0; i = symbol(i).next) {
    const std::string_view piece = text.substr(symbol(i).start, symbol(i).size);
    if (const std::int32_t token = pieces_->find(piece); token >= 0) {
      ids.push_back(token);
      continue;
    }
    for (const char c : piece) {
      if (const std::int32_t token = byte_tokens_[static_cast<unsigned char>(c)]; token >= 0) {
        ids.push_back(token);
      } else if (unknown_) {
        ids.push_back(*unknown_);
      }
    }
  }
}

}  // namespace engine
