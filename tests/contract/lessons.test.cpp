// SPDX-License-Identifier: Apache-2.0
// Defects that engines of this field had, as cases to pass; those that no other test covers already.
#include "support/attention_model.hpp"
#include "support/bytes_tokenizer.hpp"
#include "support/scripted_model.hpp"

#include <tinyllm/tinyllm.hpp>

#include <doctest/doctest.h>

using namespace tinyllm;
using test_support::AttentionModel;
using test_support::BytesTokenizer;
using test_support::ScriptedModel;

namespace {

TokenId argmax(const auto& row) {
  Index best = 0;
  row.maxCoeff(&best);
  return static_cast<TokenId>(best);
}

// What follows greedily, by the slow model.
TokenId next_of(const AttentionModel& model, const std::vector<TokenId>& known) {
  const RowMatrix full = model.forward_full(known);
  return argmax(full.row(full.rows() - 1));
}

}  // namespace

TEST_CASE_TEMPLATE("lessons: of k draft tokens any number may be accepted, and the cache holds all known tokens but one", Cache,
                   KVCache<float>, PagedKVCache<float>) {
  const AttentionModel model;
  const std::vector<TokenId> prompt = {4, 8, 15, 16, 23};
  const std::size_t k = 4;
  for (std::size_t accepted = 0; accepted <= k; ++accepted) {
    CAPTURE(accepted);
    Cache cache(cache_dims(model));
    model.forward(prompt, cache.positions(5), cache);
    std::vector<TokenId> known = prompt;
    known.push_back(next_of(model, known));

    // A draft that is right for as long as the case wants.
    std::vector<TokenId> right = known;
    std::vector<TokenId> draft;
    for (std::size_t i = 0; i < k; ++i) {
      right.push_back(next_of(model, right));
      draft.push_back(i < accepted ? right.back() : (right.back() + 1) % 61);
    }
    std::vector<TokenId> chunk = {known.back()};
    chunk.insert(chunk.end(), draft.begin(), draft.end());
    const RowMatrix logits = model.forward(chunk, cache.positions(static_cast<Index>(chunk.size())), cache);
    std::size_t agreed = 0;
    while (true) {
      known.push_back(argmax(logits.row(static_cast<Index>(agreed))));
      if (agreed == k || known.back() != draft[agreed]) break;
      ++agreed;
    }
    CHECK(agreed == accepted);
    cache.truncate(static_cast<Index>(known.size()) - 1);
    CHECK(cache.seq_len() == static_cast<Index>(known.size()) - 1);

    // From here on as if there had been no draft.
    for (int step = 0; step < 4; ++step) {
      const RowMatrix next = model.forward(std::span(known).last(1), cache.positions(1), cache);
      CHECK(argmax(next.row(0)) == next_of(model, known));
      known.push_back(argmax(next.row(0)));
    }
  }
}

TEST_CASE("lessons: characters stream one by one where no spaces are written") {
  const BytesTokenizer tokenizer({"p", "こ", "ん", "に", "ち", "\xE3\x81", "\xAF"});
  ScriptedModel model({1, 2, 3, 4, 5, 6}, 7, 1);
  std::vector<std::string> pieces;
  generate(model, tokenizer, "p", {.max_tokens = 6}, "contiguous", [&](std::string_view piece) { pieces.emplace_back(piece); });
  CHECK(pieces == std::vector<std::string>{"こ", "ん", "に", "ち", "は"});
}

TEST_CASE("lessons: an answer cut off inside a character is the same, streamed or not") {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  ScriptedModel model({'o', 'k', 0xF0, 0x9F, 0x98, 0x80}, 256, 1);
  std::string streamed;
  const Generation out =
      generate(model, tokenizer, "p", {.max_tokens = 4}, "contiguous", [&](std::string_view piece) { streamed += piece; });
  CHECK(out.text == "ok\xEF\xBF\xBD");
  CHECK(streamed == out.text);
  CHECK(tokenizer.decode(out.ids) == out.text);
}

TEST_CASE("lessons: an answer of tokens without text ends like any other") {
  const BytesTokenizer tokenizer({"p", "", "x"});
  ScriptedModel model({1, 1, 1, 2}, 3, 1);
  const Generation out = generate(model, tokenizer, "p", {.max_tokens = 3}, "contiguous");
  CHECK(out.text.empty());
  CHECK(out.ids.size() == 3);
  CHECK(out.logprobs.size() == 3);
}

TEST_CASE("lessons: a long answer under a tokenizer with nothing but decode costs a few ids a token") {
  const BytesTokenizer bytes({"p", " word", "\x80", ""});
  const test_support::DecodeOnly tokenizer(bytes);
  IncrementalDecoder decoder(tokenizer);
  for (int i = 0; i < 50'000; ++i) static_cast<void>(decoder.push(1 + i % 3));
  CHECK(tokenizer.longest() <= 64);
  CHECK(tokenizer.calls() < 50'000 * 8);
}

TEST_CASE("lessons: an aborted prefill leaves nothing behind, and what was published of it is right") {
  const AttentionModel model;
  std::vector<std::string> words;
  for (Index i = 0; i < model.config.vocab_size; ++i) words.emplace_back(1, static_cast<char>('A' + i));
  const BytesTokenizer tokenizer(words);
  const auto pool = std::make_shared<BlockPool<float>>(pool_dims(cache_dims(model), 16, 4));
  Scheduler scheduler(model, tokenizer, pool, {.token_budget = 6});
  const std::vector<TokenId> prompt = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9};
  std::stop_source source;
  auto aborted = scheduler.submit(prompt, {.max_tokens = 6, .cancel = source.get_token()});
  scheduler.step();
  source.request_stop();
  scheduler.run();
  CHECK(aborted.get().finish_reason == FinishReason::cancelled);
  CHECK(pool->ledger().held() == 0);

  auto again = scheduler.submit(prompt, {.max_tokens = 6});
  scheduler.run();
  const Generation out = again.get();
  CHECK(out.stats.cached_tokens == 4);
  CHECK(out.ids == generate(model, tokenizer, prompt, {.max_tokens = 6}, "none").ids);
}
