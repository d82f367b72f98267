// SPDX-License-Identifier: Apache-2.0
#include "support/attention_model.hpp"
#include "support/bytes_tokenizer.hpp"
#include "support/scripted_model.hpp"

#include <tinyllm/generate/generate.hpp>

#include <doctest/doctest.h>

#include <stop_token>

using namespace tinyllm;
using test_support::AttentionModel;
using test_support::BytesTokenizer;
using test_support::ScriptedModel;

namespace {

std::vector<TokenId> ids_of(std::string_view text) {
  std::vector<TokenId> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

// A scripted model whose logits take another shape before they are returned.
template <class Convert>
struct Converted : ScriptedModel {
  Converted(std::vector<TokenId> script, std::size_t prompt_size, Convert how)
      : ScriptedModel(std::move(script), 256, prompt_size), convert(how) {}
  auto forward(std::span<const TokenId> ids, Positions positions, auto& cache) {
    return convert(ScriptedModel::forward(ids, positions, cache));
  }
  Convert convert;
};

BytesTokenizer letters() {
  std::vector<std::string> words;
  for (char c = 'A'; c < 'A' + 61; ++c) words.emplace_back(1, c);
  return BytesTokenizer(words);
}

}  // namespace

TEST_CASE_TEMPLATE("generate: a model that throws half-way leaves the cache as before that pass, and it can be used again",
                   Cache, KVCache<float>, PagedKVCache<float>) {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  for (const std::size_t failing : {std::size_t{0}, std::size_t{1}, std::size_t{3}}) {
    ScriptedModel model(ids_of("hello"), 256, 2);
    model.fail_at_call = failing;
    Cache cache(cache_dims(model));
    CHECK_THROWS_AS(generate(model, tokenizer, "ab", {.max_tokens = 5}, cache), std::runtime_error);
    const Index held = failing == 0 ? 0 : 2 + static_cast<Index>(failing) - 1;
    CHECK(cache.seq_len() == held);
    CHECK(cache.seq_len(0) == held);  // no torn layer
    CHECK(generate(model, tokenizer, "ab", {.max_tokens = 5}, cache).text == "hello");
  }
}

TEST_CASE_TEMPLATE("generate: a callback that throws leaves the cache whole", Cache, KVCache<float>, PagedKVCache<float>) {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  ScriptedModel model(ids_of("hello"), 256, 2);
  Cache cache(cache_dims(model));
  int pieces = 0;
  const auto throwing = [&pieces](std::string_view) {
    if (++pieces == 3) throw std::runtime_error("the client is gone");
  };
  CHECK_THROWS_WITH(generate(model, tokenizer, "ab", {.max_tokens = 5}, cache, throwing), "the client is gone");
  CHECK(cache.seq_len() == 2 + 2);
  CHECK(cache.seq_len(0) == cache.seq_len(1));
  CHECK(generate(model, tokenizer, "ab", {.max_tokens = 5}, cache).text == "hello");
}

TEST_CASE_TEMPLATE("generate: logits that allow no choice are an error, and the pass leaves nothing behind", Cache,
                   KVCache<float>, PagedKVCache<float>) {
  const auto hopeless = [](RowMatrix logits) -> RowMatrix {
    return logits.setConstant(std::numeric_limits<float>::quiet_NaN());
  };
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  Converted model(ids_of("x"), 2, hopeless);
  Cache cache(cache_dims(model));
  CHECK_THROWS_AS(generate(model, tokenizer, "ab", {.max_tokens = 5}, cache), std::invalid_argument);
  CHECK(cache.seq_len() == 0);
}

TEST_CASE_TEMPLATE(
    "generate: a second turn computes only what the cache does not hold, and the last generated token is in it then", Cache,
    KVCache<float>, PagedKVCache<float>) {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  Cache cache(cache_dims(model));
  const Generation first = generate(model, tokenizer, "HELLO", {.max_tokens = 6}, cache);
  std::vector<TokenId> conversation = first.prompt_ids;
  conversation.insert(conversation.end(), first.ids.begin(), first.ids.end());
  CHECK(cache.seq_len() == static_cast<Index>(conversation.size()) - 1);  // tokens known = length + 1
  conversation.insert(conversation.end(), {3, 1, 4});

  const Generation second = generate(model, tokenizer, conversation, {.max_tokens = 6}, cache);
  CHECK(second.stats.cached_tokens == 5 + 5);
  CHECK(second.stats.forward_rows == 1 + 3 + 5);
  CHECK(second.ids == generate(model, tokenizer, conversation, {.max_tokens = 6}, "none").ids);
}

TEST_CASE_TEMPLATE("generate: the same prompt twice on one cache recomputes one token and gives the same", Cache,
                   KVCache<float>, PagedKVCache<float>) {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  Cache cache(cache_dims(model));
  const Generation first = generate(model, tokenizer, "HELLO", {.max_tokens = 6}, cache);
  const Generation second = generate(model, tokenizer, "HELLO", {.max_tokens = 6}, cache);
  CHECK(second.ids == first.ids);
  CHECK(second.stats.cached_tokens == 4);
  CHECK(second.stats.forward_rows == 1 + 5);
  CHECK(second.logprobs.size() == 6);
  for (std::size_t i = 0; i < 6; ++i) CHECK(second.logprobs[i] == doctest::Approx(first.logprobs[i]).epsilon(1e-5));
}

TEST_CASE_TEMPLATE("generate: a torn cache is mended before it is used", Cache, KVCache<float>, PagedKVCache<float>) {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  Cache cache(cache_dims(model));
  const RowMatrix junk = RowMatrix::Ones(3, 16);
  cache.update(0, ChunkView::from_projection(junk, 2), ChunkView::from_projection(junk, 2));
  CHECK(generate(model, tokenizer, "HELLO", {.max_tokens = 6}, cache).ids ==
        generate(model, tokenizer, "HELLO", {.max_tokens = 6}, "none").ids);
}

TEST_CASE("generate: a stop token or a callback that returns false cancels with what there is") {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  ScriptedModel model(ids_of("abcdefgh"), 256, 1);
  std::stop_source source;
  std::string seen;
  const auto stopping = [&](std::string_view piece) {
    seen += piece;
    if (piece == "c") source.request_stop();
  };
  const Generation out =
      generate(model, tokenizer, "p", {.max_tokens = 8, .cancel = source.get_token()}, "contiguous", stopping);
  CHECK(out.finish_reason == FinishReason::cancelled);
  CHECK(out.stop_kind == StopKind::cancelled);
  CHECK(out.text == "abc");
  CHECK(out.ids == ids_of("abc"));
  CHECK(model.calls.size() == 3);

  ScriptedModel again(ids_of("abcdefgh"), 256, 1);
  int pieces = 0;
  const Generation cut =
      generate(again, tokenizer, "p", {.max_tokens = 8}, "contiguous", [&pieces](std::string_view) { return ++pieces < 2; });
  CHECK(cut.finish_reason == FinishReason::cancelled);
  CHECK(cut.text == "ab");
  // Whoever said that it listens no more is not called again, whatever was held.
  ScriptedModel more(ids_of("ab\n"), 256, 1);
  int calls = 0;
  generate(more, tokenizer, "p", {.max_tokens = 8, .stop = {"bX"}}, "contiguous", [&calls](std::string_view) {
    ++calls;
    return false;
  });
  CHECK(calls == 1);

  // What is held when it is cancelled goes out.
  std::stop_source at_once;
  ScriptedModel held(ids_of("a\n"), 256, 1);
  KVCache<float> cache(cache_dims(held));
  SamplingParams params{.max_tokens = 8, .stop = {"\n\n"}, .cancel = at_once.get_token()};
  GenerationRun run(held, tokenizer, ids_of("p"), params, cache);
  CHECK(run.step() == "a");
  CHECK(run.step() == "");
  at_once.request_stop();
  CHECK(run.step() == "\n");
  CHECK(run.done());
  CHECK_THROWS(run.step());
}

TEST_CASE("generate: somebody else's use of the cache is noticed, and so are logits that are none") {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  ScriptedModel model(ids_of("abc"), 256, 1);
  KVCache<float> cache(cache_dims(model));
  const SamplingParams params{.max_tokens = 8};
  GenerationRun run(model, tokenizer, ids_of("p"), params, cache);
  run.step();
  const RowMatrix other = RowMatrix::Ones(5, 4);
  for (Index layer = 0; layer < 2; ++layer) {
    cache.update(layer, ChunkView::from_projection(other, 1), ChunkView::from_projection(other, 1));
  }
  CHECK_THROWS_AS(run.step(), std::logic_error);
  static_assert(!std::is_copy_constructible_v<decltype(run)>);

  Converted empty(ids_of("x"), 1, [](const RowMatrix&) { return RowMatrix(0, 256); });
  CHECK_THROWS_AS(generate(empty, tokenizer, "p", params), std::invalid_argument);
}

TEST_CASE("generate: a run that is left before its end says so") {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  ScriptedModel model(ids_of("abc"), 256, 1);
  KVCache<float> cache(cache_dims(model));
  GenerationRun run(model, tokenizer, ids_of("p"), {.max_tokens = 8}, cache);
  run.step();
  const Generation part = std::move(run).result();
  CHECK(part.text == "a");
  CHECK(part.finish_reason == FinishReason::cancelled);
  CHECK(part.stop_kind == StopKind::cancelled);
}

TEST_CASE("generate: no end token and no stop string before min_tokens") {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  ScriptedModel model(std::vector<TokenId>{'a', '.', '.', 0, 'b', '.', 'c'}, 256, 1);
  const Generation out =
      generate(model, tokenizer, "p", {.max_tokens = 9, .stop = {"."}, .min_tokens = 4}, "contiguous", {}, {0});
  CHECK(out.stop_kind == StopKind::stop_string);
  CHECK(out.ids.size() == 6);
  CHECK(out.ids[3] != 0);  // the script wants the end here: the next best is taken
  CHECK(out.text.starts_with("a.."));
  CHECK(out.text.ends_with("b"));
}

TEST_CASE("generate: the answer goes on inside the prompt's last character") {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  ScriptedModel model(std::vector<TokenId>{0xA9, '!'}, 256, 2);
  CHECK(generate(model, tokenizer, std::vector<TokenId>{'a', 0xC3}, {.max_tokens = 2}, "contiguous").text == "é!");
}

TEST_CASE("generate: logits may be the last row alone, in any matrix or range of floats") {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  const auto with = [&tokenizer](auto convert) {
    Converted model(ids_of("hi"), 1, convert);
    return generate(model, tokenizer, "p", {.max_tokens = 2}, "contiguous").text;
  };
  CHECK(with([](const RowMatrix& row) { return row; }) == "hi");
  CHECK(with([](const RowMatrix& row) { return Eigen::MatrixXf(row); }) == "hi");
  CHECK(with([](const RowMatrix& row) { return Eigen::VectorXf(row.row(0).transpose()); }) == "hi");
  CHECK(with([](const RowMatrix& row) { return std::vector<float>(row.data(), row.data() + row.size()); }) == "hi");
  CHECK(with([](const RowMatrix& row) {
          Eigen::MatrixXf all = Eigen::MatrixXf::Zero(3, row.cols());
          all.row(2) = row.row(0);
          return all;
        }) == "hi");
}

TEST_CASE("generate: without end ids the tokenizer's own count") {
  struct WithEos : BytesTokenizer {
    explicit WithEos(const BytesTokenizer& bytes) : BytesTokenizer(bytes) {}
    std::vector<TokenId> eos_ids() const { return {'!', '?'}; }
  };
  const WithEos tokenizer(BytesTokenizer::of_all_bytes());
  for (const std::string answer : {"ab!", "ab?"}) {
    ScriptedModel model(ids_of(answer), 256, 1);
    CHECK(generate(model, tokenizer, "p", {.max_tokens = 5}, "contiguous").text == "ab");
    ScriptedModel through(ids_of(answer), 256, 1);
    CHECK(generate(through, tokenizer, "p", {.max_tokens = 3}, "contiguous", {}, EosIds::none()).text == answer);
  }
}

TEST_CASE("generate: a stop string that the end completes is the reason of the end") {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  for (const bool by_eos : {false, true}) {
    ScriptedModel model(std::vector<TokenId>{'x', 'a', 0xC3, 0}, 256, 1);
    const SamplingParams params{.max_tokens = by_eos ? 9 : 3, .stop = {"a\xEF\xBF\xBD"}};
    const Generation out = generate(model, tokenizer, "p", params, "contiguous", {}, {0});
    CHECK(out.text == "x");
    CHECK(out.stop_kind == StopKind::stop_string);
    CHECK(out.finish_reason == FinishReason::stop);
    CHECK(out.matched_stop == "a\xEF\xBF\xBD");
  }
}

TEST_CASE("generate: an end token is chosen again exactly after min_tokens") {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  for (const Index min_tokens : {0, 1, 3}) {
    ScriptedModel model(std::vector<TokenId>{0}, 256, 1);  // it wants to end at once
    const Generation out = generate(model, tokenizer, "p", {.max_tokens = 9, .min_tokens = min_tokens}, "contiguous", {}, {0});
    CHECK(static_cast<Index>(out.ids.size()) == min_tokens);
    CHECK(out.stop_kind == StopKind::eos);
  }
}

TEST_CASE("generation: reasons and kinds have names, and a kind its reason") {
  CHECK(to_string(FinishReason::stop) == "stop");
  CHECK(to_string(FinishReason::length) == "length");
  CHECK(to_string(FinishReason::cancelled) == "cancelled");
  CHECK(to_string(StopKind::eos) == "eos");
  CHECK(to_string(StopKind::stop_string) == "stop_string");
  CHECK(to_string(StopKind::max_tokens) == "max_tokens");
  CHECK(to_string(StopKind::context) == "context");
  CHECK(to_string(StopKind::cancelled) == "cancelled");
  CHECK(finish_reason(StopKind::eos) == FinishReason::stop);
  CHECK(finish_reason(StopKind::stop_string) == FinishReason::stop);
  CHECK(finish_reason(StopKind::max_tokens) == FinishReason::length);
  CHECK(finish_reason(StopKind::context) == FinishReason::length);
  CHECK(finish_reason(StopKind::cancelled) == FinishReason::cancelled);
}

TEST_CASE("generation: what did not happen counts as nothing") {
  const BytesTokenizer tokenizer = BytesTokenizer::of_all_bytes();
  ScriptedModel model(ids_of("ab"), 256, 1);
  const Generation none = generate(model, tokenizer, "p", {.max_tokens = 0}, "contiguous");
  CHECK(none.timings.prefill_s == 0);
  CHECK(none.timings.decode_s == 0);
  CHECK(none.stats.prompt_tokens == 1);
  CHECK(none.stats.completion_tokens == 0);
  CHECK(none.stats.cached_tokens == 0);
  CHECK(none.stats.forward_calls == 0);
  CHECK(none.stats.forward_rows == 0);
  CHECK(none.stats.unknown_ids == 0);
  // One token: all of it is the prompt's pass.
  const Generation one = generate(model, tokenizer, "p", {.max_tokens = 1}, "contiguous");
  CHECK(one.timings.prefill_s > 0);
  CHECK(one.timings.prefill_s < 60);
  CHECK(one.timings.decode_s == 0);
}

TEST_CASE("generate: a pool that runs dry is a full cache, and the sequence goes on when there are blocks again") {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  const auto pool = std::make_shared<BlockPool<float>>(pool_dims(cache_dims(model), 4, 4));
  PagedKVCache<float> other(pool);
  REQUIRE(other.reserve(8));
  PagedKVCache<float> cache(pool);
  CHECK_THROWS_AS(generate(model, tokenizer, "HELLO", {.max_tokens = 8}, cache), CacheFull);
  CHECK(cache.seq_len() == 8);
  other.clear();
  CHECK(generate(model, tokenizer, "HELLO", {.max_tokens = 8}, cache).ids ==
        generate(model, tokenizer, "HELLO", {.max_tokens = 8}, "none").ids);
}
