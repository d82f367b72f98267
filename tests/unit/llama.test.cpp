// SPDX-License-Identifier: Apache-2.0
#include "llama.hpp"

#include "support/naive_llama.hpp"
#include "support/tiny_llama.hpp"

#include <tinyllm/batching/batch_causal_lm.hpp>
#include <tinyllm/cache/kv_cache.hpp>
#include <tinyllm/cache/paged_kv_cache.hpp>
#include <tinyllm/cache/recompute.hpp>
#include <tinyllm/generate/causal_lm.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <doctest/doctest.h>

using engine::Activations;
using engine::FileError;
using engine::Gguf;
using engine::Index;
using engine::Llama;
using engine::LlamaOptions;
using test_support::Bytes;
using test_support::GgufWriter;
using test_support::TinyLlama;
using test_support::TinyLlamaShape;
using tinyllm::BatchEntry;
using tinyllm::BlockPool;
using tinyllm::Exactness;
using tinyllm::KVCache;
using tinyllm::PagedKVCache;
using tinyllm::Positions;
using tinyllm::RowMatrix;
using tinyllm::TokenId;

static_assert(tinyllm::CausalLM<Llama, KVCache<float>>);
static_assert(tinyllm::CausalLM<Llama, KVCache<Eigen::half>>);
static_assert(tinyllm::CausalLM<Llama, KVCache<Eigen::bfloat16>>);
static_assert(tinyllm::CausalLM<Llama, KVCache<std::int8_t>>);
static_assert(tinyllm::CausalLM<Llama, PagedKVCache<Eigen::half>>);
static_assert(tinyllm::CausalLM<Llama, tinyllm::RecomputeCache>);
static_assert(tinyllm::BatchCausalLM<Llama, PagedKVCache<Eigen::half>>);
static_assert(tinyllm::BatchCausalLM<Llama, PagedKVCache<std::int8_t>>);
static_assert(tinyllm::BatchCausalLM<Llama, KVCache<float>>);

namespace {

// The bytes of a file and the model that reads them.
struct Loaded {
  Bytes bytes;
  tinyllm::ThreadPool pool;
  Llama model;

  explicit Loaded(const TinyLlama& tiny, Index n_threads = 2, const engine::Kernels& kernels = engine::best_kernels(),
                  Activations activations = Activations::f32)
      : Loaded(tiny.gguf().bytes(), n_threads, {.activations = activations, .kernels = kernels}) {}
  Loaded(const TinyLlama& tiny, Index n_threads, const LlamaOptions& options)
      : Loaded(tiny.gguf().bytes(), n_threads, options) {}
  explicit Loaded(Bytes file, Index n_threads = 2, const LlamaOptions& options = {})
      : bytes(std::move(file)),
        pool(n_threads),
        model(std::make_shared<const Gguf>(std::span<const std::byte>(bytes)), pool, options) {}
};

std::vector<TokenId> random_ids(std::size_t n, std::size_t vocab, unsigned seed = 11) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids;
  for (std::size_t i = 0; i < n; ++i) ids.push_back(static_cast<TokenId>(random() % vocab));
  return ids;
}

// Largest difference between rows of logits and the reference's rows from `first` on.
double worst_difference(const RowMatrix& logits, const std::vector<std::vector<double>>& expected, std::size_t first) {
  double worst = 0;
  for (Index t = 0; t < logits.rows(); ++t) {
    const std::vector<double>& row = expected[first + static_cast<std::size_t>(t)];
    REQUIRE(logits.cols() == static_cast<Index>(row.size()));
    for (Index v = 0; v < logits.cols(); ++v) {
      const double difference = std::abs(static_cast<double>(logits(t, v)) - row[static_cast<std::size_t>(v)]);
      worst = std::isfinite(difference) ? std::max(worst, difference) : 1e30;
    }
  }
  return worst;
}

// Of all differences from the reference.
double root_mean_square(const RowMatrix& logits, const std::vector<std::vector<double>>& expected) {
  double squares = 0;
  for (Index t = 0; t < logits.rows(); ++t) {
    for (Index v = 0; v < logits.cols(); ++v) {
      const double difference =
          static_cast<double>(logits(t, v)) - expected[static_cast<std::size_t>(t)][static_cast<std::size_t>(v)];
      squares += difference * difference;
    }
  }
  return std::sqrt(squares / static_cast<double>(logits.size()));
}

template <class Cache>
RowMatrix all_logits(Llama& model, std::span<const TokenId> ids, Cache& cache) {
  return model.forward_all(ids, cache.positions(static_cast<Index>(ids.size())), cache);
}

// Sequences that go through a model together, and what they should come to: all their logits, by themselves.
template <class Cache>
class Crowd {
 public:
  Crowd(Llama& model, const std::vector<std::vector<TokenId>>& sequences) : model_(model), sequences_(sequences) {
    for (const std::vector<TokenId>& ids : sequences_) {
      KVCache<typename Cache::value_type> alone(tinyllm::cache_dims(model));
      expected_.push_back(all_logits(model, ids, alone));
    }
  }

  // One pass: the next n[i] tokens of each sequence that has some left, logits of the last n_logits[i] of them.
  void step(std::vector<Cache>& caches, const std::vector<Index>& n, const std::vector<Index>& n_logits) {
    std::vector<BatchEntry<Cache>> batch;
    std::vector<Eigen::RowVectorXf> rows;
    for (std::size_t i = 0; i < caches.size(); ++i) {
      const Index held = caches[i].seq_len();
      const Index tokens = std::min(n[i], static_cast<Index>(sequences_[i].size()) - held);
      if (tokens == 0) continue;
      const Index wanted = std::min(n_logits[i], tokens);
      const auto ids = std::span(sequences_[i]).subspan(static_cast<std::size_t>(held), static_cast<std::size_t>(tokens));
      batch.push_back({ids, caches[i].positions(tokens), &caches[i], wanted});
      for (Index row = held + tokens - wanted; row < held + tokens; ++row) rows.emplace_back(expected_[i].row(row));
    }
    const RowMatrix& logits = model_.forward_batch(std::span<const BatchEntry<Cache>>(batch));
    REQUIRE(logits.rows() == static_cast<Index>(rows.size()));
    for (std::size_t i = 0; i < rows.size(); ++i) CHECK(logits.row(static_cast<Index>(i)) == rows[i]);
  }

  bool done(const std::vector<Cache>& caches) const {
    for (std::size_t i = 0; i < caches.size(); ++i) {
      if (caches[i].seq_len() < static_cast<Index>(sequences_[i].size())) return false;
    }
    return true;
  }

 private:
  Llama& model_;
  std::vector<std::vector<TokenId>> sequences_;
  std::vector<RowMatrix> expected_;
};

std::string file_error(const Bytes& bytes) {
  try {
    const Loaded loaded{bytes};
  } catch (const FileError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("llama_equals_the_naive_reference") {
  const TinyLlamaShape shapes[] = {
      {},                                                             // grouped queries, tied head
      {.tied = false},                                                // a head of its own
      {.kv_heads = 6, .rope_dims = 10},                               // every head has keys of its own; the whole head turns
      {.heads = 10, .kv_heads = 1, .head_dim = 16, .rope_dims = 16},  // one kv head, a group larger than a kernel's four
      {.linear_factor = 4},
      {.rope_factors = {1.0F, 1.5F, 4.0F, 8.0F}},
  };
  int number = 0;
  for (const TinyLlamaShape& shape : shapes) {
    CAPTURE(number++);
    const TinyLlama tiny(shape);
    const std::vector<TokenId> ids = random_ids(45, shape.vocab);
    const std::vector<std::vector<double>> expected = test_support::naive_llama(tiny, ids);
    for (const Index n_threads : {1, 3}) {
      Loaded loaded(tiny, n_threads);
      KVCache<float> cache(tinyllm::cache_dims(loaded.model));
      CHECK(worst_difference(all_logits(loaded.model, ids, cache), expected, 0) < 1e-4);
      tinyllm::RecomputeCache none;
      CHECK(worst_difference(all_logits(loaded.model, ids, none), expected, 0) < 1e-4);
    }
    for (const engine::Kernels* kernels : engine::every_kernels()) {
      CAPTURE(kernels->name);
      Loaded loaded(tiny, 2, *kernels);
      KVCache<float> cache(tinyllm::cache_dims(loaded.model));
      CHECK(worst_difference(all_logits(loaded.model, ids, cache), expected, 0) < 1e-4);
    }
  }
}

TEST_CASE("llama_of_quantised_weights") {
  // The naive model has the numbers that the blocks stand for.
  const TinyLlama tiny({.hidden = 64, .heads = 4, .head_dim = 16, .rope_dims = 16, .inner = 96, .q8_0 = true});
  const std::vector<TokenId> ids = random_ids(45, tiny.shape().vocab);
  const std::vector<std::vector<double>> expected = test_support::naive_llama(tiny, ids);
  for (const engine::Kernels* kernels : engine::every_kernels()) {
    CAPTURE(kernels->name);
    for (const Activations activations : {Activations::f32, Activations::q8}) {
      Loaded loaded(tiny, 2, *kernels, activations);
      KVCache<float> cache(tinyllm::cache_dims(loaded.model));
      const RowMatrix whole = all_logits(loaded.model, ids, cache);
      const double worst = worst_difference(whole, expected, 0);
      if (activations == Activations::f32) {
        CHECK(worst < 1e-4);
      } else {
        CHECK(root_mean_square(whole, expected) < 0.1);  // of logits of about 1
        CHECK(worst > 1e-4);                             // it is rounded indeed
      }
      cache.clear();
      for (std::size_t t = 0; t < ids.size(); ++t) {
        const RowMatrix alone = all_logits(loaded.model, std::span(ids).subspan(t, 1), cache);
        CHECK((alone - whole.row(static_cast<Index>(t))).cwiseAbs().maxCoeff() <
              (activations == Activations::f32 ? 1e-4 : 5e-2));
      }
    }
  }
}

TEST_CASE("llama_chunks_and_single_tokens_equal_the_whole") {
  const TinyLlama tiny;
  const std::vector<TokenId> ids = random_ids(100, tiny.shape().vocab);
  const std::vector<std::vector<double>> expected = test_support::naive_llama(tiny, ids);
  Loaded loaded(tiny);
  const std::vector<std::vector<std::size_t>> splits = {
      std::vector<std::size_t>(100, 1), {3, 1, 5, 2, 60, 1, 28}, {99, 1}, {1, 99}, {20, 17, 33, 30}};
  for (const std::vector<std::size_t>& split : splits) {
    KVCache<float> cache(tinyllm::cache_dims(loaded.model));
    std::size_t at = 0;
    for (const std::size_t n : split) {
      CAPTURE(at);
      CHECK(worst_difference(all_logits(loaded.model, std::span(ids).subspan(at, n), cache), expected, at) < 1e-4);
      at += n;
      CHECK(cache.seq_len() == static_cast<Index>(at));
    }
    CHECK(at == ids.size());
  }
}

TEST_CASE("llama_last_row_and_slices_equal_all_rows") {
  const TinyLlama tiny;
  const std::vector<TokenId> ids = random_ids(70, tiny.shape().vocab);
  Loaded loaded(tiny);
  KVCache<float> cache(tinyllm::cache_dims(loaded.model));
  const RowMatrix all = all_logits(loaded.model, ids, cache);
  CHECK(all.rows() == 70);

  cache.clear();
  const RowMatrix last = loaded.model.forward(ids, cache.positions(70), cache);
  REQUIRE(last.rows() == 1);
  CHECK((last - all.bottomRows(1)).cwiseAbs().maxCoeff() < 1e-4F);

  cache.clear();
  Index next = 0;
  loaded.model.for_each_logits(ids, cache.positions(70), cache, [&](Index i, std::span<const float> logits) {
    CHECK(i == next++);
    REQUIRE(static_cast<Index>(logits.size()) == all.cols());
    CHECK((Eigen::Map<const Eigen::RowVectorXf>(logits.data(), all.cols()) - all.row(i)).cwiseAbs().maxCoeff() < 1e-4F);
  });
  CHECK(next == 70);
}

TEST_CASE("llama_reads_sixteen_bit_caches") {
  const TinyLlama tiny;
  const std::vector<TokenId> ids = random_ids(40, tiny.shape().vocab);
  const std::vector<std::vector<double>> expected = test_support::naive_llama(tiny, ids);
  for (const engine::Kernels* kernels : engine::every_kernels()) {
    Loaded loaded(tiny, 2, *kernels);
    KVCache<Eigen::half> half(tinyllm::cache_dims(loaded.model));
    KVCache<Eigen::bfloat16> bfloat16(tinyllm::cache_dims(loaded.model));
    const std::span<const TokenId> all(ids);
    CHECK(worst_difference(all_logits(loaded.model, all.first(30), half), expected, 0) < 2e-2);
    CHECK(worst_difference(all_logits(loaded.model, all.first(30), bfloat16), expected, 0) < 2e-1);
    for (std::size_t t = 30; t < 40; ++t) {
      CHECK(worst_difference(all_logits(loaded.model, all.subspan(t, 1), half), expected, t) < 2e-2);
      CHECK(worst_difference(all_logits(loaded.model, all.subspan(t, 1), bfloat16), expected, t) < 2e-1);
    }
  }
}

TEST_CASE("llama_reads_eight_bit_caches") {
  const TinyLlama tiny;
  const std::vector<TokenId> ids = random_ids(40, tiny.shape().vocab);
  const std::vector<std::vector<double>> expected = test_support::naive_llama(tiny, ids);
  for (const engine::Kernels* kernels : engine::every_kernels()) {
    Loaded loaded(tiny, 2, *kernels);
    KVCache<std::int8_t> cache(tinyllm::cache_dims(loaded.model));
    PagedKVCache<std::int8_t> paged(tinyllm::cache_dims(loaded.model), 4);
    const std::span<const TokenId> all(ids);
    CHECK(worst_difference(all_logits(loaded.model, all.first(30), cache), expected, 0) < 3e-1);
    all_logits(loaded.model, all.first(30), paged);
    for (std::size_t t = 30; t < 40; ++t) {
      const RowMatrix logits = all_logits(loaded.model, all.subspan(t, 1), cache);
      CHECK(worst_difference(logits, expected, t) < 3e-1);
      CHECK(all_logits(loaded.model, all.subspan(t, 1), paged) == logits);
    }
  }
}

TEST_CASE("llama_gives_a_token_the_same_bits_in_any_batch") {
  const TinyLlama plain;
  const TinyLlama quantised({.hidden = 64, .heads = 4, .head_dim = 16, .rope_dims = 16, .inner = 96, .q8_0 = true});
  for (const Activations activations : {Activations::f32, Activations::q8}) {
    const TinyLlama& tiny = activations == Activations::f32 ? plain : quantised;
    std::vector<std::vector<TokenId>> sequences;
    for (const unsigned n : {90U, 1U, 33U, 17U, 128U, 60U, 2U, 45U}) sequences.push_back(random_ids(n, tiny.shape().vocab, n));
    for (const Index n_threads : {1, 2, 3}) {
      CAPTURE(n_threads);
      Loaded loaded(tiny, n_threads, {.activations = activations});
      Loaded alone(tiny, 1, {.activations = activations});
      const tinyllm::CacheDims dims = tinyllm::cache_dims(loaded.model);

      using Paged = PagedKVCache<Eigen::half>;
      Crowd<Paged> crowd(loaded.model, sequences);
      const auto pool = std::make_shared<BlockPool<Eigen::half>>(tinyllm::pool_dims(dims, 150, 4));
      std::vector<Paged> caches;
      for (std::size_t i = 0; i < sequences.size(); ++i) caches.emplace_back(pool, dims.max_len);
      crowd.step(caches, {70, 1, 3, 16, 1, 0, 1, 20}, {1, 1, 0, 16, 1, 0, 1, 2});  // one is most of the work
      while (!crowd.done(caches)) crowd.step(caches, {1, 1, 2, 1, 40, 5, 1, 3}, {1, 1, 1, 0, 1, 5, 1, 1});

      using Plain = KVCache<float>;
      Crowd<Plain> others(alone.model, sequences);
      std::vector<Plain> plain_caches;
      for (std::size_t i = 0; i < sequences.size(); ++i) plain_caches.emplace_back(dims);
      while (!others.done(plain_caches)) others.step(plain_caches, {7, 1, 7, 7, 50, 7, 1, 7}, {1, 1, 1, 1, 50, 1, 1, 1});
    }
  }
}

TEST_CASE("llama_threads_and_chunks_change_no_bit") {
  const TinyLlama tiny;
  const std::vector<TokenId> ids = random_ids(100, tiny.shape().vocab);
  Loaded one(tiny, 1);
  Loaded three(tiny, 3);
  KVCache<Eigen::half> whole(tinyllm::cache_dims(one.model));
  KVCache<Eigen::half> parts(tinyllm::cache_dims(one.model));
  const RowMatrix expected = all_logits(one.model, ids, whole);
  std::size_t at = 0;
  for (const std::size_t n : std::vector<std::size_t>{3, 1, 5, 2, 60, 1, 28}) {
    CHECK(all_logits(three.model, std::span(ids).subspan(at, n), parts) ==
          expected.middleRows(static_cast<Index>(at), static_cast<Index>(n)));
    at += n;
  }
}

TEST_CASE("llama_that_rounds_is_close") {
  const TinyLlama tiny;
  const std::vector<TokenId> ids = random_ids(100, tiny.shape().vocab);
  const std::vector<std::vector<double>> expected = test_support::naive_llama(tiny, ids);
  Loaded loaded(tiny, 2, {.exactness = Exactness::rounding});
  KVCache<float> cache(tinyllm::cache_dims(loaded.model));
  CHECK(worst_difference(all_logits(loaded.model, std::span(ids).first(70), cache), expected, 0) < 1e-4);
  CHECK(worst_difference(all_logits(loaded.model, std::span(ids).subspan(70), cache), expected, 70) < 1e-4);
}

TEST_CASE("llama_refuses_bad_batches_and_leaves_the_caches_alone") {
  const TinyLlama tiny;
  Loaded loaded(tiny);
  using Cache = PagedKVCache<float>;
  const auto pool = std::make_shared<BlockPool<float>>(tinyllm::pool_dims(tinyllm::cache_dims(loaded.model), 3, 4));
  std::vector<Cache> caches;
  for (int i = 0; i < 2; ++i) caches.emplace_back(pool);
  const auto pass = [&](const std::vector<TokenId>& a, const std::vector<TokenId>& b, Index n_logits) {
    const BatchEntry<Cache> batch[] = {{a, caches[0].positions(static_cast<Index>(a.size())), &caches[0], 1},
                                       {b, {caches[1].seq_len(), static_cast<Index>(b.size())}, &caches[1], n_logits}};
    return loaded.model.forward_batch(std::span<const BatchEntry<Cache>>(batch)).rows();
  };
  const auto lengths = [&] { return std::vector<Index>{caches[0].seq_len(0), caches[1].seq_len(0)}; };
  CHECK(pass({1, 2, 3}, {4, 5}, 2) == 3);
  const std::vector<Index> before{3, 2};
  CHECK_THROWS_WITH_AS(pass({1}, {0, 53}, 1), "forward: id 53 is not in the vocabulary of 53", std::out_of_range);
  CHECK_THROWS_AS(pass({1}, {-1}, 1), std::out_of_range);
  CHECK_THROWS_AS(pass({1}, {}, 0), std::invalid_argument);
  CHECK_THROWS_WITH_AS(pass({1}, {1}, 2), "forward: logits of 2 tokens are wanted of 1", std::invalid_argument);
  CHECK_THROWS_AS(pass({1}, {1}, -1), std::invalid_argument);
  CHECK(lengths() == before);
  CHECK_THROWS_AS(pass({1}, std::vector<TokenId>(9, 7), 1), tinyllm::CacheFull);  // the pool has no blocks for them
  for (Cache& cache : caches) cache.truncate(cache.seq_len());
  CHECK(lengths() == before);
  CHECK(pass({1}, {1}, 0) == 1);
  CHECK(loaded.model.forward_batch(std::span<const BatchEntry<Cache>>()).rows() == 0);
}

TEST_CASE("llama_config_has_the_hugging_face_names") {
  const TinyLlama tiny;
  const Loaded loaded(tiny);
  const engine::LlamaConfig& config = loaded.model.config();
  CHECK(config.num_hidden_layers == 3);
  CHECK(config.hidden_size == 36);
  CHECK(config.num_attention_heads == 6);
  CHECK(config.num_key_value_heads == 2);
  CHECK(config.head_dim == 10);
  CHECK(config.intermediate_size == 44);
  CHECK(config.vocab_size == 53);
  CHECK(config.max_position_embeddings == 128);
  CHECK(config.rms_norm_eps == 1e-5F);
  CHECK(config.rope_theta == 500);
  CHECK(config.rope_dims == 8);
  const tinyllm::CacheDims expected{.n_layers = 3, .n_kv_heads = 2, .d_head = 10, .max_len = 128};
  CHECK(tinyllm::cache_dims(loaded.model) == expected);
}

TEST_CASE("llama_refuses_bad_passes_and_leaves_the_cache_alone") {
  const TinyLlama tiny;
  Loaded loaded(tiny);
  KVCache<float> cache(tinyllm::cache_dims(loaded.model));
  const std::vector<TokenId> ids{1, 2, 3};
  loaded.model.forward(ids, cache.positions(3), cache);
  const auto pass = [&](std::vector<TokenId> bad, Positions positions) { loaded.model.forward(bad, positions, cache); };
  CHECK_THROWS_WITH_AS(pass({0, 53}, {3, 2}), "forward: id 53 is not in the vocabulary of 53", std::out_of_range);
  CHECK_THROWS_AS(pass({-1}, {3, 1}), std::out_of_range);
  CHECK_THROWS_AS(pass({}, {3, 0}), std::invalid_argument);
  CHECK_THROWS_AS(pass({1, 2}, {3, 1}), std::invalid_argument);
  CHECK_THROWS_AS(pass({1}, {128, 1}), std::out_of_range);
  CHECK_THROWS_AS(pass({1}, {-1, 1}), std::out_of_range);
  for (Index layer = 0; layer < 3; ++layer) CHECK(cache.seq_len(layer) == 3);
  pass({0, 52}, {3, 2});
  CHECK(cache.seq_len() == 5);
}

TEST_CASE("llama_refuses_other_files") {
  const TinyLlama tiny;
  GgufWriter gpt;
  gpt.string("general.architecture", "gpt2");
  CHECK(file_error(gpt.bytes()).find("architecture 'gpt2' is not supported (llama is)") != std::string::npos);
  CHECK(file_error(GgufWriter().bytes()).find("general.architecture is missing") != std::string::npos);

  TinyLlama wrong_shape;
  wrong_shape.matrices()["blk.1.attn_k.weight"] = wrong_shape.matrix("blk.1.attn_q.weight");
  CHECK(file_error(wrong_shape.gguf().bytes())
            .find("tensor 'blk.1.attn_k.weight' is [rows, cols] = [60, 36], the configuration says [20, 36]") !=
        std::string::npos);

  TinyLlama missing;
  missing.matrices().erase("blk.2.ffn_up.weight");
  CHECK(file_error(missing.gguf().bytes()).find("blk.2.ffn_up.weight") != std::string::npos);

  TinyLlama biased;
  biased.matrices()["blk.0.attn_q.bias"] = biased.matrix("output_norm.weight");
  CHECK(file_error(biased.gguf().bytes()).find("biases are not supported") != std::string::npos);

  const TinyLlama few_factors({.rope_factors = {1.0F, 2.0F}});
  CHECK(file_error(few_factors.gguf().bytes()).find("'rope_freqs.weight' is [rows, cols] = [1, 2]") != std::string::npos);
}

TEST_CASE("llama_refuses_impossible_configurations") {
  struct Case {
    const char* key;
    std::uint32_t value;
    const char* text;
  };
  // The file's first entry of a name would win, so each case leaves the good one out.
  const Case cases[] = {
      {"llama.block_count", 0, "llama.block_count is 0; it must be at least 1"},
      {"llama.attention.head_count_kv", 4, "6 query heads do not divide into groups for 4 kv heads"},
      {"llama.rope.dimension_count", 7, "llama.rope.dimension_count is 7; it must be even and at most the head's 10"},
      {"llama.rope.dimension_count", 12, "it must be even and at most the head's 10"},
      {"llama.attention.value_length", 5, "keys of 10 and values of 5 are not supported"},
      {"llama.expert_count", 8, "mixtures of experts are not supported"},
  };
  const TinyLlama tiny;
  const std::vector<std::pair<const char*, std::uint32_t>> good = {
      {"llama.block_count", 3},           {"llama.embedding_length", 36},       {"llama.feed_forward_length", 44},
      {"llama.context_length", 128},      {"llama.attention.head_count", 6},    {"llama.attention.head_count_kv", 2},
      {"llama.attention.key_length", 10}, {"llama.attention.value_length", 10}, {"llama.rope.dimension_count", 8}};
  for (const Case& bad : cases) {
    CAPTURE(bad.key);
    GgufWriter writer;
    writer.string("general.architecture", "llama").put("llama.attention.layer_norm_rms_epsilon", 1e-5F);
    for (const auto& [key, value] : good) {
      if (std::string(key) != bad.key) writer.put(key, value);
    }
    writer.put(bad.key, bad.value);
    tiny.tensors(writer);
    CHECK(file_error(writer.bytes()).find(bad.text) != std::string::npos);
  }
  for (std::size_t required = 0; required < 5; ++required) {
    const char* const left_out = good[required].first;
    CAPTURE(left_out);
    GgufWriter writer;
    writer.string("general.architecture", "llama").put("llama.attention.layer_norm_rms_epsilon", 1e-5F);
    for (const auto& [key, value] : good) {
      if (std::string(key) != left_out) writer.put(key, value);
    }
    tiny.tensors(writer);
    CHECK(file_error(writer.bytes()).find(std::string(left_out) + " is missing") != std::string::npos);
  }
  GgufWriter scaled;
  scaled.string("general.architecture", "llama").string("llama.rope.scaling.type", "yarn");
  tiny.metadata(scaled);
  tiny.tensors(scaled);
  CHECK(file_error(scaled.bytes()).find("rope scaling 'yarn' is not supported (linear is)") != std::string::npos);
}
