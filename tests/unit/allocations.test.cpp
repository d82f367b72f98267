// SPDX-License-Identifier: Apache-2.0
// What allocates nothing once it is warm: a counting operator new says so, and a counting malloc, which is what Eigen calls;
// the linker puts that in the place of the other. A program of its own, since it replaces them.
#include "llama.hpp"
#include "support/bytes_tokenizer.hpp"
#include "support/tiny_llama.hpp"

#include <tinyllm/tinyllm.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

extern "C" void* __real_malloc(std::size_t size);

namespace {

std::atomic<std::size_t> allocations = 0;

void* counted(std::size_t size, std::size_t alignment) {
  ++allocations;
  void* memory = alignment <= alignof(std::max_align_t)
                     ? __real_malloc(size)
                     : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

extern "C" void* __wrap_malloc(std::size_t size) {
  ++allocations;
  return __real_malloc(size);
}
[[gnu::noinline]] void* operator new(std::size_t size) { return counted(size, 1); }
[[gnu::noinline]] void* operator new[](std::size_t size) { return counted(size, 1); }
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

using namespace tinyllm;

namespace {

template <class F>
std::size_t count_allocations(F f) {
  const std::size_t before = allocations;
  f();
  return allocations - before;
}

// Its logits and its rows are there from the start.
struct SteadyModel {
  struct Config {
    Index num_hidden_layers = 2, num_attention_heads = 2, num_key_value_heads = 2, head_dim = 4, max_position_embeddings = 4096;
  } config;
  RowMatrix rows = RowMatrix::Ones(1, 8);
  RowMatrix logits = RowMatrix::Zero(1, 256);
  TokenId next = 0;

  const RowMatrix& forward(std::span<const TokenId> ids, Positions, auto& cache) {
    fill(cache, ids.size());
    choose_next();
    return logits;
  }

  template <class Cache>
  const RowMatrix& forward_batch(std::span<const BatchEntry<Cache>> batch) {
    Index wanted = 0;
    for (const auto& entry : batch) {
      fill(*entry.cache, entry.ids.size());
      wanted += entry.n_logits;
    }
    if (logits.rows() != wanted) logits = RowMatrix::Zero(wanted, 256);
    choose_next();
    return logits;
  }

 private:
  void fill(auto& cache, std::size_t tokens) {
    for (std::size_t t = 0; t < tokens; ++t) {
      for (Index layer = 0; layer < 2; ++layer) {
        cache.update(layer, ChunkView::from_projection(rows, 2), ChunkView::from_projection(rows, 2));
      }
    }
  }
  void choose_next() {
    logits.col(next).setZero();
    next = static_cast<TokenId>((next + 37) % 256);  // characters whole and broken
    logits.col(next).setOnes();
  }
};

}  // namespace

TEST_CASE("allocations: the counter counts") {
  CHECK(count_allocations([] { ::operator delete(::operator new(8)); }) == 1);
  RowMatrix matrix;
  CHECK(count_allocations([&] { matrix.resize(3, 5); }) == 1);
}

TEST_CASE("allocations: the byte path and the stop strings allocate nothing a token once warm") {
  const test_support::BytesTokenizer tokenizer({"word", " and more", "\xF0\x9F", "\x98\x80", "\xFF", "\n", "é", "\xC3"});
  TextStream stream(tokenizer, {.stop = {"\n\n\n", "no such word", "and mare"}});
  stream.reserve(20'000);
  std::size_t bytes = 0;
  const auto push = [&](int n) {
    for (int i = 0; i < n; ++i) bytes += stream.push(static_cast<TokenId>((i * 5 + i / 7) % 8)).size();
  };
  push(1000);
  CHECK(count_allocations([&] { push(10'000); }) == 0);
  CHECK(bytes > 10'000);
}

TEST_CASE("allocations: a decode step of a cache allocates nothing") {
  KVCache<Eigen::half> cache({.n_layers = 2, .n_kv_heads = 2, .d_head = 4, .max_len = 1000});
  PagedKVCache<Eigen::half> paged({.n_layers = 2, .n_kv_heads = 2, .d_head = 4, .max_len = 1000}, 4);
  LatentCache<float> latent({.n_layers = 2, .d_latent = 4, .d_rope = 2, .max_len = 1000});
  const RowMatrix x = RowMatrix::Ones(1, 8);
  const RowMatrix c = RowMatrix::Ones(1, 4);
  const RowMatrix k = RowMatrix::Ones(1, 2);
  CHECK(count_allocations([&] {
          for (int i = 0; i < 500; ++i) {
            for (Index layer = 0; layer < 2; ++layer) {
              cache.update(layer, ChunkView::from_projection(x, 2), ChunkView::from_projection(x, 2));
              paged.update(layer, ChunkView::from_projection(x, 2), ChunkView::from_projection(x, 2));
              latent.update(layer, ChunkView::from_projection(c, 1), ChunkView::from_projection(k, 1));
            }
            static_cast<void>(cache.positions(1));
            static_cast<void>(cache.mask(1));
            if (i % 10 == 9) {
              cache.truncate(cache.seq_len() - 3);
              paged.truncate(paged.seq_len() - 3);
            }
          }
        }) == 0);
}

TEST_CASE_TEMPLATE("allocations: attention allocates nothing once its workspace has grown", Dtype, float, std::int8_t) {
  KVCache<Dtype> cache({.n_layers = 1, .n_kv_heads = 2, .d_head = 32, .max_len = 3000});
  const RowMatrix rows = RowMatrix::Random(2000, 64);
  const RowMatrix q = RowMatrix::Random(1, 3 * 64);
  RowMatrix out(1, q.cols());
  cache.update(0, ChunkView::from_projection(rows, 2), ChunkView::from_projection(rows, 2));
  const ChunkView next(rows.data(), {.batch = 1, .heads = 2, .tokens = 1, .d = 32});
  const auto check = [&](auto& executor) {
    AttendWorkspace workspace;
    const auto steps = [&](int n) {
      for (int i = 0; i < n; ++i) attend(cache.update(0, next, next), q, out, workspace, {}, executor);
    };
    steps(800);
    cache.truncate(2000);
    CHECK(count_allocations([&] { steps(800); }) == 0);
    cache.truncate(2000);
  };
  SerialExecutor serial;
  ThreadPool pool(2);
  check(serial);
  check(pool);
}

TEST_CASE("allocations: the sampler allocates nothing once warm") {
  std::vector<float> logits(20'000);
  const auto choose = [&logits](Sampler& sampler, Rng& rng, int n) {
    for (int i = 0; i < n; ++i) {
      for (std::size_t id = 0; id < logits.size(); ++id) {
        logits[id] = 4.0F * std::sin(static_cast<float>(id * id % 7919 + static_cast<std::size_t>(i)));
      }
      static_cast<void>(sampler.sample(logits, {}, rng, {}));
    }
  };
  const std::vector<SamplingParams> all = {
      {}, {.temperature = 1.0F, .top_k = 40, .top_p = 0.95F}, {.temperature = 1.0F, .top_p = 0.95F}};
  for (const SamplingParams& params : all) {
    CAPTURE(params.top_k);
    Sampler sampler(params);
    Rng rng = request_rng();
    choose(sampler, rng, 3);
    CHECK(count_allocations([&] { choose(sampler, rng, 50); }) == 0);
  }
}

TEST_CASE("allocations: the greedy loop allocates nothing a token once warm") {
  const test_support::BytesTokenizer tokenizer = test_support::BytesTokenizer::of_all_bytes();
  SteadyModel model;
  KVCache<float> cache(cache_dims(model));
  const SamplingParams params{.max_tokens = 2000, .stop = {"no such text"}};
  GenerationRun run(model, tokenizer, std::vector<TokenId>{1, 2, 3}, params, cache);
  const auto steps = [&run](int n) {
    std::size_t bytes = 0;
    for (int i = 0; i < n; ++i) bytes += run.step().size();
    return bytes;
  };
  steps(100);
  std::size_t bytes = 0;
  CHECK(count_allocations([&] { bytes = steps(1500); }) == 0);
  CHECK(bytes > 1000);
}

TEST_CASE("allocations: passes over many requests allocate nothing once warm") {
  const test_support::BytesTokenizer tokenizer = test_support::BytesTokenizer::of_all_bytes();
  SteadyModel model;
  const auto pool = std::make_shared<BlockPool<float>>(pool_dims(cache_dims(model), 2000));
  Scheduler scheduler(model, tokenizer, pool, {});
  std::size_t bytes = 0;
  std::vector<std::future<Generation>> answers;
  for (TokenId i = 0; i < 4; ++i) {
    answers.push_back(scheduler.submit(std::vector<TokenId>{i, 2, 3}, {.max_tokens = 2000, .stop = {"no such text"}},
                                       [&bytes](std::string_view piece) { bytes += piece.size(); }));
  }
  const auto steps = [&scheduler](int n) {
    for (int i = 0; i < n; ++i) scheduler.step();
  };
  steps(100);
  CHECK(count_allocations([&] { steps(1500); }) == 0);
  CHECK(bytes > 4000);
  CHECK(pool->ledger().held() >= 4 * 100);
}

TEST_CASE("allocations: a decode step of a Llama allocates nothing") {
  const test_support::TinyLlama weights({.hidden = 64, .heads = 4, .head_dim = 16, .rope_dims = 16, .inner = 96, .q8_0 = true});
  const test_support::Bytes bytes = weights.gguf().bytes();
  const auto gguf = std::make_shared<const engine::Gguf>(bytes);
  ThreadPool threads(2);
  ThreadPool one_thread(1);
  std::vector<std::string> tokens;
  for (std::size_t i = 0; i < weights.shape().vocab; ++i) tokens.emplace_back(1, static_cast<char>('A' + i));
  const test_support::BytesTokenizer tokenizer(tokens);
  for (const auto activations : {engine::Activations::f32, engine::Activations::q8}) {
    engine::Llama llama(gguf, threads, {.activations = activations});

    KVCache<Eigen::half> cache(cache_dims(llama));
    GenerationRun run(llama, tokenizer, std::vector<TokenId>{1, 2, 3}, {}, cache);
    for (int i = 0; i < 5; ++i) run.step();
    CHECK(count_allocations([&] {
            for (int i = 0; i < 100; ++i) run.step();
          }) == 0);
    CHECK(cache.seq_len() == 3 + 104);

    // On one thread: which of several takes a sequence, and makes its memory grow, is chance.
    engine::Llama batched(gguf, one_thread, {.activations = activations});
    const auto pool = std::make_shared<BlockPool<Eigen::half>>(pool_dims(cache_dims(batched), 100));
    Scheduler scheduler(batched, tokenizer, pool, {.share_prefixes = false});
    std::vector<std::future<Generation>> answers;
    const auto submit = [&] {
      for (TokenId i = 0; i < 4; ++i) answers.push_back(scheduler.submit(std::vector<TokenId>{i, 2, 3}, {.max_tokens = 120}));
    };
    submit();
    scheduler.run();
    submit();
    for (int i = 0; i < 5; ++i) scheduler.step();
    CHECK(count_allocations([&] {
            for (int i = 0; i < 100; ++i) scheduler.step();
          }) == 0);
    CHECK(scheduler.stats().rows == 4 * (3 + 119) + 4 * (3 + 104));
  }
}
