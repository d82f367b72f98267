// SPDX-License-Identifier: Apache-2.0
#include "support/bytes_tokenizer.hpp"
#include "support/scripted_model.hpp"

#include <tinyllm/generate/generate.hpp>
#include <tinyllm/generate/stream.hpp>

#include <doctest/doctest.h>

using namespace tinyllm;
using test_support::BytesTokenizer;
using test_support::ScriptedModel;

namespace {

std::vector<TokenId> script(std::string_view text) {
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  ids.push_back(0);
  return ids;
}

}  // namespace

TEST_CASE("stream: the pieces of generate, as a range") {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  const SamplingParams params{.max_tokens = 30, .stop = {"\n\n"}};
  for (const std::string answer : {"café\nau lait\n\nmore", "", "\n", "x"}) {
    CAPTURE(answer);
    ScriptedModel model(script(answer), 256, 1);
    KVCache<float> cache(cache_dims(model));
    std::vector<std::string> expected;
    const Generation out =
        generate(model, tokenizer, "p", params, cache, [&](std::string_view p) { expected.emplace_back(p); }, {0});

    ScriptedModel again(script(answer), 256, 1);
    KVCache<float> other(cache_dims(again));
    auto range = stream(again, tokenizer, "p", params, other, {0});
    CHECK(again.calls.empty());  // nothing is computed before it is asked for
    std::vector<std::string> pieces;
    for (const std::string_view piece : range) pieces.emplace_back(piece);
    CHECK(pieces == expected);
    CHECK(range.done());
    const Generation same = std::move(range).result();
    CHECK(same.text == out.text);
    CHECK(same.ids == out.ids);
    CHECK(same.stop_kind == out.stop_kind);
  }
}

TEST_CASE("stream: leaving the loop early computes no more, and the cache can be used again") {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  ScriptedModel model(script("abcdef"), 256, 1);
  KVCache<float> cache(cache_dims(model));
  {
    auto range = stream(model, tokenizer, std::vector<TokenId>{'p'}, {.max_tokens = 6}, cache);
    for (const std::string_view piece : range) {
      if (piece == "b") break;
    }
    CHECK(model.calls.size() == 2);
    CHECK_FALSE(range.done());
    const Generation part = std::move(range).result();
    CHECK(part.text == "ab");
    CHECK(part.ids.size() == 2);
  }
  CHECK(cache.seq_len() == 2);
  std::string all;
  for (const std::string_view piece : stream(model, tokenizer, "p", {.max_tokens = 6}, cache)) all += piece;
  CHECK(all == "abcdef");
}

TEST_CASE("stream: what generate refuses is refused before the range exists") {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  ScriptedModel model(script("a"), 256, 1);
  KVCache<float> cache(cache_dims(model));
  CHECK_THROWS_AS(stream(model, tokenizer, "", {}, cache), std::invalid_argument);
  static_assert(std::ranges::input_range<decltype(stream(model, tokenizer, "p", {}, cache))>);
}

TEST_CASE("generate: each id's bytes in the text, and ids that the tokenizer does not have") {
  const BytesTokenizer tokenizer({"p", "a", "\xC3", "\xA9"});
  ScriptedModel model({1, 2, 3, 5, 1}, 8, 1);
  const Generation out = generate(model, tokenizer, "p", {.max_tokens = 5}, "contiguous");
  CHECK(out.text == "aéa");
  CHECK(out.text_ranges == std::vector<TextRange>{{0, 1}, {1, 3}, {1, 3}, {3, 3}, {3, 4}});
  CHECK(out.stats.unknown_ids == 1);
}
