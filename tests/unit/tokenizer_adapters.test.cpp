// SPDX-License-Identifier: Apache-2.0
#include "support/scripted_model.hpp"

#include <tinyllm/generate/generate.hpp>
#include <tinyllm/text/incremental_decoder.hpp>
#include <tinyllm/text/tokenizer_adapters.hpp>

#include <doctest/doctest.h>

using namespace tinyllm;
using test_support::ScriptedModel;

static_assert(ByteTokenizer<SentencePieceAdapter> && tinyllm::Tokenizer<SentencePieceAdapter>);
static_assert(tinyllm::Tokenizer<FunctionTokenizer> && !ByteTokenizer<FunctionTokenizer>);

namespace {

const std::vector<std::string> pieces = {"<unk>",  "<s>",         "</s>",       "<0xE4>", "<0xB8>", "<0xad>", "\u2581Hello",
                                         "\u2581", "\u2581world", "lo\u2581wo", "<0xZZ>", "<0x4>",  "!"};

SentencePieceAdapter adapter() {
  return {static_cast<Index>(pieces.size()),
          [](TokenId id) { return pieces[static_cast<std::size_t>(id)]; },
          {.hidden = [](TokenId id) { return id < 3; }}};
}

std::string decoded(const auto& tokenizer, const std::vector<TokenId>& ids) {
  IncrementalDecoder decoder(tokenizer);
  std::string text;
  for (const TokenId id : ids) text += decoder.push(id);
  text += decoder.flush();
  return text;
}

}  // namespace

TEST_CASE("sentencepiece adapter: spaces, bytes, hidden tokens, and one leading space a sequence") {
  const SentencePieceAdapter tokenizer = adapter();
  CHECK(tokenizer.vocab_size() == 13);
  CHECK(tokenizer.token_bytes(6) == " Hello");
  CHECK(tokenizer.token_bytes(9) == "lo wo");
  CHECK(tokenizer.token_bytes(3) == "\xE4");
  CHECK(tokenizer.token_bytes(5) == "\xAD");
  CHECK(tokenizer.token_bytes(10) == "<0xZZ>");  // no byte: text
  CHECK(tokenizer.token_bytes(11) == "<0x4>");
  CHECK(tokenizer.token_bytes(1) == "");
  CHECK(decoded(tokenizer, {1, 6, 8, 12}) == "Hello world!");
  CHECK(decoded(tokenizer, {7, 6}) == " Hello");
  CHECK(decoded(tokenizer, {6, 3, 4, 5, 8}) == "Hello中 world");
  CHECK(decoded(tokenizer, {3, 4, 8}) == "\xEF\xBF\xBD world");
  const SentencePieceAdapter all(2, [](TokenId) { return std::string_view("<s>"); });
  CHECK(all.token_bytes(0) == "<s>");
  CHECK_THROWS_AS(all.encode("x"), std::logic_error);
  const SentencePieceAdapter no_prefix(1, [](TokenId) { return std::string("\u2581a"); }, {.strips_leading_space = false});
  CHECK(decoded(no_prefix, {0, 0}) == " a a");
}

TEST_CASE("sentencepiece adapter: with encode it is all that generate asks for") {
  const SentencePieceAdapter tokenizer(static_cast<Index>(pieces.size()),
                                       [](TokenId id) { return pieces[static_cast<std::size_t>(id)]; },
                                       {.hidden = [](TokenId id) { return id < 3; },
                                        .encode =
                                            [](std::string_view) {
                                              return std::vector<TokenId>{1, 6};
                                            }});
  ScriptedModel model({8, 12, 2}, 13, 2);
  CHECK(generate(model, tokenizer, "Hello", {.max_tokens = 9}, "contiguous", {}, {2}).text == " world!");
}

TEST_CASE("function tokenizer: two functions are enough to generate") {
  const FunctionTokenizer tokenizer([](std::string_view text) { return std::vector<TokenId>(text.begin(), text.end()); },
                                    [](const std::vector<TokenId>& ids) { return std::string(ids.begin(), ids.end()); });
  ScriptedModel model({'o', 'k', '.', 'x'}, 128, 2);
  CHECK(generate(model, tokenizer, "hi", {.max_tokens = 9, .stop = {"."}}, "contiguous").text == "ok");
  CHECK_THROWS_AS(FunctionTokenizer(nullptr, [](const std::vector<TokenId>&) { return std::string(); }), std::invalid_argument);
}

TEST_CASE("sentencepiece adapter: every byte, in capital and small digits") {
  for (const std::string digits : {"0123456789ABCDEF", "0123456789abcdef"}) {
    const SentencePieceAdapter bytes(256, [&digits](TokenId id) {
      const auto byte = static_cast<std::size_t>(id);
      return std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">";
    });
    for (TokenId id = 0; id < 256; ++id) CHECK(bytes.token_bytes(id) == std::string(1, static_cast<char>(id)));
  }
  const std::vector<std::string> none = {"<0xG0>", "<0x0G>", "<0x/0>", "<0x:0>", "<0x@0>",
                                         "<0x`0>", "<0xg0>", "<0x00",  "(0x00>"};
  const SentencePieceAdapter text(static_cast<Index>(none.size()),
                                  [&none](TokenId id) { return none[static_cast<std::size_t>(id)]; });
  for (std::size_t i = 0; i < none.size(); ++i) CHECK(text.token_bytes(static_cast<TokenId>(i)) == none[i]);
}
