// SPDX-License-Identifier: Apache-2.0
// The contract on a real architecture: a tiny Llama of the example engine, written as a GGUF file and run from it.
#include "llama.hpp"
#include "support/bytes_tokenizer.hpp"
#include "support/tiny_llama.hpp"

#include <tinyllm/tinyllm.hpp>

#include <doctest/doctest.h>

using namespace tinyllm;

namespace {

// Records each call's last row of logits.
struct Watched {
  engine::Llama& llama;
  const engine::LlamaConfig& config() const { return llama.config(); }
  const RowMatrix& forward(std::span<const TokenId> ids, Positions positions, auto& cache) {
    const RowMatrix& result = llama.forward(ids, positions, cache);
    logits.push_back(result);
    return result;
  }
  std::vector<RowMatrix> logits = {};
};

}  // namespace

TEST_CASE("llama_generates_the_same_with_and_without_cache") {
  const test_support::TinyLlama weights;
  const test_support::Bytes bytes = weights.gguf().bytes();
  ThreadPool pool(2);
  engine::Llama llama(std::make_shared<const engine::Gguf>(bytes), pool);
  std::vector<std::string> tokens;
  for (std::size_t i = 0; i < weights.shape().vocab; ++i) tokens.emplace_back(1, static_cast<char>('A' + i));
  const test_support::BytesTokenizer tokenizer(tokens);

  Watched full{llama};
  Watched cached{llama};
  Watched paged{llama};
  Watched halved{llama};
  const SamplingParams params{.max_tokens = 40};
  const Generation expected = generate(full, tokenizer, "HELLO", params, "none");
  const Generation out = generate(cached, tokenizer, "HELLO", params, "contiguous");
  const Generation in_blocks = generate(paged, tokenizer, "HELLO", params, "paged");
  KVCache<Eigen::half> half(cache_dims(llama));
  const Generation in_half = generate(halved, tokenizer, "HELLO", params, half);
  CHECK(expected.ids.size() == 40);
  CHECK(out.ids == expected.ids);
  CHECK(in_blocks.ids == expected.ids);
  CHECK(in_half.ids == expected.ids);
  REQUIRE(full.logits.size() == cached.logits.size());
  for (std::size_t step = 0; step < full.logits.size(); ++step) {
    CHECK((full.logits[step] - cached.logits[step]).cwiseAbs().maxCoeff() <= 1e-5F);
    CHECK(paged.logits[step] == cached.logits[step]);
    CHECK((full.logits[step] - halved.logits[step]).cwiseAbs().maxCoeff() <= 2e-2F);
  }
}

TEST_CASE("llama: many requests at once answer as alone, in any chunks, and when they are set aside") {
  const test_support::TinyLlama weights;
  const test_support::Bytes bytes = weights.gguf().bytes();
  ThreadPool threads(2);
  engine::Llama llama(std::make_shared<const engine::Gguf>(bytes), threads);
  std::vector<std::string> tokens;
  for (std::size_t i = 0; i < weights.shape().vocab; ++i) tokens.emplace_back(1, static_cast<char>('A' + i));
  const test_support::BytesTokenizer tokenizer(tokens);

  const auto prompt_of = [](int i) { return std::string("HELLO").substr(0, static_cast<std::size_t>(1 + i % 5)) + "AB"; };
  const auto params_of = [](int i) {
    return SamplingParams{.max_tokens = 12, .temperature = i % 2 == 0 ? 0.0F : 1.0F, .seed = static_cast<std::uint64_t>(i)};
  };
  const auto run = [&](Index n_blocks, const SchedulerOptions& options, int first, int n) {
    const auto pool = std::make_shared<BlockPool<Eigen::half>>(pool_dims(cache_dims(llama), n_blocks, 4));
    Scheduler scheduler(llama, tokenizer, pool, options);
    std::vector<std::future<Generation>> answers;
    for (int i = first; i < first + n; ++i) {
      answers.push_back(scheduler.submit(prompt_of(i), params_of(i)));
      scheduler.step();
    }
    scheduler.run();
    std::vector<Generation> out;
    for (auto& answer : answers) out.push_back(answer.get());
    return out;
  };
  const std::vector<Generation> together = run(9, {.token_budget = 5}, 0, 10);
  for (int i = 0; i < 10; ++i) {
    const Generation alone = run(40, {.share_prefixes = false}, i, 1).front();
    CHECK(together[static_cast<std::size_t>(i)].ids == alone.ids);
    CHECK(together[static_cast<std::size_t>(i)].logprobs == alone.logprobs);

    KVCache<Eigen::half> cache(cache_dims(llama));
    const Generation generated = generate(llama, tokenizer, prompt_of(i), params_of(i), cache);
    CHECK(generated.ids == alone.ids);
    CHECK(generated.logprobs == alone.logprobs);
  }
}
