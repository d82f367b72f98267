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
