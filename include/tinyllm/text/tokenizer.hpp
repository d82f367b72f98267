// SPDX-License-Identifier: Apache-2.0
// What the library asks of a tokenizer: either bytes a token (best), or only the text of a list of ids.
//
//     static_assert(tinyllm::ByteTokenizer<MyBpe>);        // token_bytes(id), vocab_size()
//     static_assert(tinyllm::IdsTokenizer<MyWrapper>);     // decode(ids)
//     static_assert(tinyllm::Tokenizer<MyBpe>);            // ... and encode(text), which generate needs
//
// What a tokenizer may offer besides, and is used if it is there:
//   bool strips_leading_space() const                            its text drops one leading space a sequence (byte tokenizers)
//   std::optional<TokenId> token_to_id(std::string_view) const   stop strings that are the text of a special token work
//   eos_ids() const, a range of ids                              what ends an answer unless the caller says otherwise
#pragma once

#include <tinyllm/core/types.hpp>

#include <concepts>
#include <ranges>
#include <string>
#include <string_view>
#include <vector>

namespace tinyllm {

/// Gives the bytes that a token adds to the text: none for special tokens that are not shown.
template <class T>
concept ByteTokenizer = requires(const T& tokenizer, TokenId id) {
  { tokenizer.token_bytes(id) } -> std::convertible_to<std::string_view>;
  { tokenizer.vocab_size() } -> std::convertible_to<Index>;
};

/// Gives the text of a list of ids, and no more than that.
template <class T>
concept IdsTokenizer = requires(const T& tokenizer, const std::vector<TokenId>& ids) {
  { tokenizer.decode(ids) } -> std::convertible_to<std::string>;
};

/// Can be decoded as ids arrive.
template <class T>
concept Detokenizer = ByteTokenizer<T> || IdsTokenizer<T>;

/// A list of ids.
template <class T>
concept IdRange = std::ranges::input_range<T> && std::convertible_to<std::ranges::range_value_t<T>, TokenId>;

/// Turns text into ids.
template <class T>
concept Encoder = requires(const T& tokenizer, std::string_view text) {
  { tokenizer.encode(text) } -> IdRange;
};

/// Both ways: what `generate` takes.
template <class T>
concept Tokenizer = Detokenizer<T> && Encoder<T>;

}  // namespace tinyllm
