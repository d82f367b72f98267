// SPDX-License-Identifier: Apache-2.0
// The contract of the generate loop, test by test under the contract's names.
#include "support/attention_model.hpp"
#include "support/bytes_tokenizer.hpp"
#include "support/scripted_model.hpp"

#include <tinyllm/tinyllm.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <numeric>

using namespace tinyllm;
using test_support::AttentionModel;
using test_support::BytesTokenizer;
using test_support::ScriptedModel;

namespace {

constexpr TokenId eos = 0;

std::vector<TokenId> ids_of(std::string_view text) {
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

// A model that answers "prompt" with this text, byte by byte, and then with EOS for ever.
ScriptedModel answering(std::string_view prompt, std::string_view answer) {
  std::vector<TokenId> script = ids_of(answer);
  script.push_back(eos);
  return ScriptedModel(std::move(script), 256, prompt.size());
}

double log_softmax(const RowMatrix& logits, TokenId id) {
  double sum = 0;
  for (Index i = 0; i < logits.cols(); ++i) sum += std::exp(static_cast<double>(logits(logits.rows() - 1, i)));
  return static_cast<double>(logits(logits.rows() - 1, id)) - std::log(sum);
}

struct Collected {
  std::vector<std::string> pieces;
  std::string text() const { return std::accumulate(pieces.begin(), pieces.end(), std::string()); }
  auto callback() {
    return [this](std::string_view piece) { pieces.emplace_back(piece); };
  }
};

}  // namespace

TEST_CASE("generate_greedy_follows_the_script") {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  ScriptedModel model = answering("Hi!", "café");
  KVCache<float> cache(cache_dims(model));
  Collected streamed;
  const Generation out = generate(model, tokenizer, "Hi!", {.max_tokens = 20}, cache, streamed.callback(), {eos});

  CHECK(out.ids == ids_of("café"));
  CHECK(out.text == "café");
  CHECK(out.prompt_ids == ids_of("Hi!"));
  CHECK(streamed.pieces == std::vector<std::string>{"c", "a", "f", "é"});
  CHECK(out.finish_reason == FinishReason::stop);
  CHECK(out.stop_kind == StopKind::eos);
  CHECK(out.matched_stop == std::nullopt);

  // The prompt once, then one token a call at position |P| + |ids| - 1; the model sees only what is new.
  REQUIRE(model.calls.size() == 6);
  CHECK(model.calls[0].ids == ids_of("Hi!"));
  CHECK(model.calls[0].positions == Positions(0, 3));
  for (std::size_t i = 1; i < 6; ++i) {
    CHECK(model.calls[i].ids == std::vector<TokenId>{ids_of("café")[i - 1]});
    CHECK(model.calls[i].positions == Positions(3 + static_cast<Index>(i) - 1, 1));
  }
  CHECK(cache.seq_len() == 3 + 5);

  CHECK(out.stats.prompt_tokens == 3);
  CHECK(out.stats.completion_tokens == 5);
  CHECK(out.stats.cached_tokens == 0);
  CHECK(out.stats.forward_calls == 6);
  CHECK(out.stats.forward_rows == 8);
  CHECK(out.stats.cache_bytes == cache.nbytes());
  CHECK(out.timings.prefill_s > 0);
  CHECK(out.timings.decode_s > 0);

  // Log-probabilities of the raw logits, one an id.
  REQUIRE(out.logprobs.size() == out.ids.size());
  ScriptedModel replay = answering("Hi!", "café");
  RecomputeCache nothing;
  std::vector<TokenId> known = ids_of("Hi!");
  for (std::size_t i = 0; i < out.ids.size(); ++i) {
    const RowMatrix logits = replay.forward(known, {0, static_cast<Index>(known.size())}, nothing);
    CHECK(static_cast<double>(out.logprobs[i]) == doctest::Approx(log_softmax(logits, out.ids[i])).epsilon(1e-5));
    known.push_back(out.ids[i]);
  }
}

TEST_CASE("eos_stops_and_is_not_emitted") {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  for (const TokenId end : {TokenId{'!'}, TokenId{eos}}) {
    ScriptedModel model = answering("p", "ab!cd");
    const Generation out = generate(model, tokenizer, "p", {.max_tokens = 20}, "contiguous", {}, {end, 7});
    const std::string expected = end == '!' ? "ab" : "ab!cd";
    CHECK(out.text == expected);
    CHECK(out.ids == ids_of(expected));
    CHECK(out.logprobs.size() == expected.size());
    CHECK(out.stop_kind == StopKind::eos);
    CHECK(out.finish_reason == FinishReason::stop);
  }
  // At once: an empty answer. On the last allowed token: stop and not length.
  ScriptedModel at_once = answering("p", "");
  CHECK(generate(at_once, tokenizer, "p", {.max_tokens = 5}, "none", {}, {eos}).ids.empty());
  ScriptedModel last = answering("p", "ab");
  CHECK(generate(last, tokenizer, "p", {.max_tokens = 3}, "none", {}, {eos}).stop_kind == StopKind::eos);
  // What is held goes out: a character cut off by EOS is one U+FFFD, the beginning of a stop string is text.
  ScriptedModel cut = answering("p", "a\xE4\xB8");
  CHECK(generate(cut, tokenizer, "p", {.max_tokens = 9}, "none", {}, {eos}).text == "a\xEF\xBF\xBD");
  ScriptedModel begun = answering("p", "x\n");
  CHECK(generate(begun, tokenizer, "p", {.max_tokens = 9, .stop = {"\n\n"}}, "none", {}, {eos}).text == "x\n");
  // No end ids: EOS is a token like any other.
  ScriptedModel through = answering("p", "a");
  const Generation no_end = generate(through, tokenizer, "p", {.max_tokens = 4}, "none", {}, EosIds::none());
  CHECK(no_end.ids == std::vector<TokenId>{'a', eos, eos, eos});
}

TEST_CASE("stop_strings_cut_and_stream_safely") {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  struct Case {
    std::string answer;
    std::vector<std::string> stops;
    std::string text;
    std::string matched;
    std::size_t ids;
  };
  const std::vector<Case> cases = {
      {"one\n\ntwo", {"\n\n"}, "one", "\n\n", 5},
      {"aaab", {"aab"}, "a", "aab", 4},
      {"there", {"re", "he"}, "t", "he", 3},
      {"abcd", {"abcd", "bc"}, "a", "bc", 3},
      {"THE END", {"END", "THE END"}, "", "THE END", 7},
      {"xyab", {"b", "ab"}, "xy", "ab", 4},
      {"été!", {"té"}, "é", "té", 5},
  };
  for (const Case& c : cases) {
    CAPTURE(c.answer);
    for (const bool include : {false, true}) {
      ScriptedModel model = answering("p", c.answer);
      Collected streamed;
      const Generation out = generate(model, tokenizer, "p", {.max_tokens = 30, .stop = c.stops, .include_stop = include},
                                      "contiguous", streamed.callback(), {eos});
      CHECK(out.text == c.text + (include ? c.matched : ""));
      CHECK(out.matched_stop == c.matched);
      CHECK(out.stop_kind == StopKind::stop_string);
      CHECK(out.finish_reason == FinishReason::stop);
      CHECK(out.ids.size() == c.ids);
      CHECK(streamed.text() == out.text);
    }
  }

  // Exactly what may still become a stop string is held: "ab" goes out as soon as "x" comes, "a" after it waits.
  ScriptedModel model = answering("p", "abxa.");
  Collected streamed;
  generate(model, tokenizer, "p", {.max_tokens = 30, .stop = {"abc", "ax"}}, "contiguous", streamed.callback(), {eos});
  CHECK(streamed.pieces == std::vector<std::string>{"abx", "a."});

  // A stop found on the last allowed token is a stop.
  ScriptedModel last = answering("p", "abc");
  const Generation out = generate(last, tokenizer, "p", {.max_tokens = 3, .stop = {"c"}}, "contiguous", {}, {eos});
  CHECK(out.stop_kind == StopKind::stop_string);
  CHECK(out.text == "ab");
  // Without room for more, what was held is text.
  ScriptedModel held = answering("p", "ab\n");
  CHECK(generate(held, tokenizer, "p", {.max_tokens = 3, .stop = {"\n\n"}}, "contiguous", {}, {eos}).text == "ab\n");

  ScriptedModel any = answering("p", "a");
  CHECK_THROWS_AS(generate(any, tokenizer, "p", {.stop = {""}}, "contiguous"), std::invalid_argument);
  CHECK_THROWS_AS(generate(any, tokenizer, "p", {.stop = {"\xC3"}}, "contiguous"), std::invalid_argument);
}

TEST_CASE("max_len_limits_generation") {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  const std::string endless(50, 'x');
  for (const bool by_model : {false, true}) {
    ScriptedModel model = answering("abc", endless);
    if (by_model) model.config.max_position_embeddings = 8;
    KVCache<float> cache({.n_layers = 2, .n_kv_heads = 1, .d_head = 4, .max_len = by_model ? 20 : 8});
    const Generation out = generate(model, tokenizer, "abc", {}, cache);
    CHECK(out.finish_reason == FinishReason::length);
    CHECK(out.stop_kind == StopKind::context);
    CHECK(out.ids.size() == 5);
    for (const auto& call : model.calls) CHECK(call.positions.first() + call.positions.size() <= 8);
  }
  // max_tokens first.
  ScriptedModel model = answering("abc", endless);
  model.config.max_position_embeddings = 8;
  CHECK(generate(model, tokenizer, "abc", {.max_tokens = 5}, "contiguous").stop_kind == StopKind::max_tokens);
  CHECK(generate(model, tokenizer, "abc", {.max_tokens = 0}, "contiguous").ids.empty());

  const std::size_t calls = model.calls.size();
  CHECK_THROWS_WITH_AS(generate(model, tokenizer, "", {}, "contiguous"), doctest::Contains("empty"), std::invalid_argument);
  CHECK_THROWS_WITH_AS(generate(model, tokenizer, "abcdefgh", {}, "contiguous"), doctest::Contains("no room"),
                       std::invalid_argument);
  CHECK_THROWS_WITH_AS(generate(model, tokenizer, "abcdefgh", {}, "none"), doctest::Contains("no room"), std::invalid_argument);
  CHECK_THROWS_AS(generate(model, tokenizer, "abc", {.max_tokens = -1}, "contiguous"), std::invalid_argument);
  CHECK(model.calls.size() == calls);
  CHECK(generate(model, tokenizer, "abcdefg", {}, "contiguous").ids.size() == 1);
}

TEST_CASE("seeded_sampling_uses_the_request_stream") {
  const AttentionModel model;
  std::vector<std::string> words;
  for (Index i = 0; i < model.config.vocab_size; ++i) words.emplace_back(1, static_cast<char>('A' + i));
  const BytesTokenizer tokenizer(words);
  const std::vector<TokenId> prompt = {3, 1, 4, 1, 5};
  const SamplingParams params{.max_tokens = 24,
                              .logit_bias = {{7, 0.5F}, {9, -2.0F}},
                              .repetition_penalty = 1.2F,
                              .presence_penalty = 0.1F,
                              .frequency_penalty = 0.05F,
                              .temperature = 0.9F,
                              .min_p = 0.001F,
                              .top_k = 40,
                              .top_p = 0.97F,
                              .seed = 42};
  const Generation out = generate(model, tokenizer, prompt, params);
  REQUIRE(out.ids.size() == 24);

  // The same by hand: the slow model, the free sampler, the request's stream.
  Rng rng = request_rng(42);
  std::vector<TokenId> known = prompt;
  std::vector<TokenId> history;
  for (std::size_t i = 0; i < out.ids.size(); ++i) {
    const RowMatrix full = model.forward_full(known);
    const RowMatrix last = full.bottomRows(1);
    const std::span<const float> logits(last.data(), static_cast<std::size_t>(last.size()));
    const Sampled next = sample(logits, params, history, rng, prompt);
    CHECK(next.id == out.ids[i]);
    CHECK(next.logprob == doctest::Approx(out.logprobs[i]).epsilon(1e-4));
    CHECK(static_cast<double>(out.logprobs[i]) == doctest::Approx(log_softmax(last, next.id)).epsilon(1e-4));
    CHECK(out.entropies[i] == doctest::Approx(sampled_entropy(logits, params, history, prompt)).epsilon(1e-4));
    known.push_back(next.id);
    history.push_back(next.id);
  }

  const auto ids = [&](std::uint64_t seed) {
    SamplingParams again = params;
    again.seed = seed;
    return generate(model, tokenizer, prompt, again).ids;
  };
  CHECK(ids(42) == out.ids);
  CHECK(ids(43) != out.ids);
  CHECK(generate(model, tokenizer, prompt, {.max_tokens = 9, .temperature = 1.0F}).ids ==
        generate(model, tokenizer, prompt, {.max_tokens = 9, .temperature = 1.0F, .seed = 0}).ids);
}

TEST_CASE("cache_modes_and_dims") {
  const AttentionModel model;
  std::vector<std::string> words;
  for (Index i = 0; i < model.config.vocab_size; ++i) words.emplace_back(1, static_cast<char>('A' + i));
  const BytesTokenizer tokenizer(words);
  const SamplingParams params{.max_tokens = 12};
  const Generation none = generate(model, tokenizer, "HELLO", params, "none");
  const Generation contiguous = generate(model, tokenizer, "HELLO", params, "contiguous");
  CHECK(none.ids.size() == 12);
  CHECK(none.ids == contiguous.ids);
  CHECK(none.text == contiguous.text);
  const Generation paged = generate(model, tokenizer, "HELLO", params, "paged");
  CHECK(paged.ids == none.ids);
  CHECK(paged.logprobs == contiguous.logprobs);
  CHECK(paged.stats.forward_rows == contiguous.stats.forward_rows);
  CHECK(paged.stats.cache_bytes < contiguous.stats.cache_bytes);  // one block of four
  CHECK(none.stats.forward_rows == 5 + 6 + 7 + 8 + 9 + 10 + 11 + 12 + 13 + 14 + 15 + 16);
  CHECK(contiguous.stats.forward_rows == 5 + 11);
  CHECK(generate(model, tokenizer, "HELLO", params, CacheMode::none).ids == none.ids);
  for (const char* unknown : {"", "static", "Contiguous", "none ", "Paged"}) {
    CHECK_THROWS_AS(generate(model, tokenizer, "HELLO", params, unknown), std::invalid_argument);
  }

  // The caller's own cache object is the one that is used.
  KVCache<float> cache(cache_dims(model));
  CHECK(generate(model, tokenizer, "HELLO", params, cache).ids == none.ids);
  CHECK(cache.seq_len() == 5 + 11);

  // Hugging Face names.
  CHECK(cache_dims(model) == CacheDims{.n_layers = 3, .n_kv_heads = 2, .d_head = 8, .max_len = 64, .batch = 1});
  CHECK(cache_dims(model, 5).batch == 5);
  struct Old {
    struct Config {
      int num_hidden_layers = 12, num_attention_heads = 12, hidden_size = 768, max_position_embeddings = 1024;
    };
    Config config() const { return {}; }
  };
  CHECK(cache_dims(Old()) == CacheDims{.n_layers = 12, .n_kv_heads = 12, .d_head = 64, .max_len = 1024, .batch = 1});
  struct Optional {
    int num_hidden_layers = 2, num_attention_heads = 8, hidden_size = 128, max_position_embeddings = 32;
    std::optional<int> num_key_value_heads = 4;
    std::optional<int> head_dim;
  };
  CHECK(cache_dims(Optional()) == CacheDims{.n_layers = 2, .n_kv_heads = 4, .d_head = 16, .max_len = 32, .batch = 1});
  Optional odd;
  odd.hidden_size = 130;
  CHECK_THROWS_AS(cache_dims(odd), std::invalid_argument);
  odd.head_dim = 20;
  CHECK(cache_dims(odd).d_head == 20);
  struct AllOptional {
    std::optional<int> num_hidden_layers = 2, num_attention_heads = 4, hidden_size = 32, max_position_embeddings = 16;
  };
  CHECK(cache_dims(AllOptional()) == CacheDims{.n_layers = 2, .n_kv_heads = 4, .d_head = 8, .max_len = 16, .batch = 1});
  CHECK(max_positions(AllOptional()) == 16);
  CHECK(generate(model, tokenizer, "HELLO", params).ids == none.ids);  // contiguous unless told otherwise
}
