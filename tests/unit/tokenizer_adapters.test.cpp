// SPDX-License-Identifier: Apache-2.0
#include "support/scripted_model.hpp"

#include <tinyllm/generate/generate.hpp>
#include <tinyllm/text/incremental_decoder.hpp>
#include <tinyllm/text/tokenizer_adapters.hpp>

#include <doctest/doctest.h>

using namespace tinyllm;
using test_support::ScriptedModel;

static_assert(ByteTokenizer<SentencePieceAdapter>);
static_assert(tinyllm::Tokenizer<FunctionTokenizer> && !ByteTokenizer<FunctionTokenizer>);

namespace {

const std::vector<std::string> pieces = {"<unk>",  "<s>",         "</s>",       "<0xE4>", "<0xB8>", "<0xad>", "\u2581Hello",
                                         "\u2581", "\u2581world", "lo\u2581wo", "<0xZZ>", "<0x4>",  "!"};

SentencePieceAdapter adapter() {
  return {static_cast<Index>(pieces.size()), [](TokenId id) { return pieces[static_cast<std::size_t>(id)]; },
          [](TokenId id) { return id < 3; }};
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
}

TEST_CASE("function tokenizer: two functions are enough to generate") {
  const FunctionTokenizer tokenizer([](std::string_view text) { return std::vector<TokenId>(text.begin(), text.end()); },
                                    [](const std::vector<TokenId>& ids) { return std::string(ids.begin(), ids.end()); });
  ScriptedModel model({'o', 'k', '.', 'x'}, 128, 2);
  CHECK(generate(model, tokenizer, "hi", {.max_tokens = 9, .stop = {"."}}, "contiguous").text == "ok");
  CHECK_THROWS_AS(FunctionTokenizer(nullptr, [](const std::vector<TokenId>&) { return std::string(); }), std::invalid_argument);
}
