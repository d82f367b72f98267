// SPDX-License-Identifier: Apache-2.0

#include "bpe.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>

#include "byte_map.hpp"
#include "gguf_error.hpp"

namespace engine {
namespace {

std::int32_t piece_of(StringPool& pieces, std::string_view bytes) {
  std::int32_t number = pieces.find(bytes);
  if (number < 0) {
    number = pieces.append(bytes);
    pieces.make_findable(number);
  }
  return number;
}

}  // namespace

Bpe::Bpe(StringPool& pieces, std::int32_t vocab_size, std::span<const std::string_view> merges, bool takes_known_words_whole)
    : pieces_(&pieces), vocab_size_(vocab_size), takes_known_words_whole_(takes_known_words_whole) {
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(static_cast<unsigned char>(byte));
    byte_pieces_[byte] = piece_of(pieces, {&c, 1});
  }
  merges_.reserve(merges.size());
  std::string both;
  for (std::size_t i = 0; i < merges.size(); ++i) {
    // A space at the very front would be the left piece itself, so the search starts behind it.
    const std::size_t space = merges[i].find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merges[i].size()) {
      throw FileError("merge " + std::to_string(i) + " (tokenizer.ggml.merges) is not two pieces: " + in_quotes(merges[i]));
    }
    both.clear();
    if (!append_mapped_bytes(both, merges[i].substr(0, space))) {
      continue;  // no byte-level text contains such a piece
    }
    const std::size_t length = both.size();
    if (!append_mapped_bytes(both, merges[i].substr(space + 1))) {
      continue;
    }
    const std::string_view view = both;
    const std::int32_t left = piece_of(pieces, view.substr(0, length));
    const std::int32_t right = piece_of(pieces, view.substr(length));
    merges_.insert(left, right, {static_cast<std::uint32_t>(i), piece_of(pieces, view)});
  }
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<std::int32_t>& ids) const {
  if (takes_known_words_whole_) {
    if (const std::int32_t piece = pieces_->find(word); piece >= 0 && piece < vocab_size_) {
      ids.push_back(piece);
      return;
    }
  }
  auto& symbols = scratch.symbols;
  auto& queue = scratch.queue;
  symbols.clear();
  queue.clear();
  const auto count = static_cast<std::int32_t>(word.size());
  for (std::int32_t i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(word[static_cast<std::size_t>(i)]);
    symbols.push_back({byte_pieces_[byte], i - 1, i + 1 < count ? i + 1 : -1, no_merge, -1});
  }
  for (std::int32_t i = 0; i + 1 < count; ++i) {
    rank_pair(scratch, i);
  }
  std::make_heap(queue.begin(), queue.end(), std::greater<>());

  while (!queue.empty()) {
    const std::uint64_t top = queue.front();
    std::pop_heap(queue.begin(), queue.end(), std::greater<>());
    queue.pop_back();
    const auto at = static_cast<std::int32_t>(top & 0xFFFFFFFF);
    auto& left = symbols[static_cast<std::size_t>(at)];
    // A pair that changed since it was queued has another rank now: ranks belong to one pair each.
    if (left.rank != top >> 32) {
      continue;
    }
    auto& right = symbols[static_cast<std::size_t>(left.next)];
    left.piece = left.merged;
    left.next = right.next;
    right.rank = no_merge;
    if (left.next >= 0) {
      symbols[static_cast<std::size_t>(left.next)].previous = at;
    }
    for (const std::int32_t changed : {left.previous, at}) {
      const std::size_t before = queue.size();
      if (changed >= 0) {
        rank_pair(scratch, changed);
      }
      if (queue.size() > before) {
        std::push_heap(queue.begin(), queue.end(), std::greater<>());
      }
    }
  }
  for (std::int32_t at = count > 0 ? 0 : -1; at >= 0; at = symbols[static_cast<std::size_t>(at)].next) {
    emit(symbols[static_cast<std::size_t>(at)].piece, ids);
  }
}

// Looks up the merge of the symbol with its next one and puts it at the end of the queue.
void Bpe::rank_pair(Scratch& scratch, std::int32_t left) const {
  auto& symbol = scratch.symbols[static_cast<std::size_t>(left)];
  symbol.rank = no_merge;
  if (symbol.next < 0) {
    return;
  }
  const std::int32_t right = scratch.symbols[static_cast<std::size_t>(symbol.next)].piece;
  if (const Merge* const merge = merges_.find(symbol.piece, right)) {
    symbol.rank = merge->rank;
    symbol.merged = merge->merged;
    scratch.queue.push_back(std::uint64_t{merge->rank} << 32 | static_cast<std::uint32_t>(left));
  }
}

void Bpe::emit(std::int32_t piece, std::vector<std::int32_t>& ids) const {
  if (piece < vocab_size_) {
    ids.push_back(piece);
    return;
  }
  for (const char c : (*pieces_)[piece]) {
    if (const std::int32_t byte = byte_pieces_[static_cast<unsigned char>(c)]; byte < vocab_size_) {
      ids.push_back(byte);
    }
  }
}

}  // namespace engine
