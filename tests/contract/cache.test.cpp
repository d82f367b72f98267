// SPDX-License-Identifier: Apache-2.0
// The contract of the caches, test by test under the contract's names.
#include "support/attention_model.hpp"

#include <tinyllm/tinyllm.hpp>

#include <doctest/doctest.h>

#include <cstring>
#include <limits>
#include <numeric>

using namespace tinyllm;
using test_support::AttentionModel;

namespace {

RowMatrix rows(std::initializer_list<std::initializer_list<float>> values) {
  RowMatrix m(static_cast<Index>(values.size()), static_cast<Index>(values.begin()->size()));
  Index i = 0;
  for (const auto& row : values) {
    Index j = 0;
    for (const float x : row) m(i, j++) = x;
    ++i;
  }
  return m;
}

template <class Dtype>
RowMatrix as_float(const StoredRows<Dtype>& stored) {
  return stored.template cast<float>();
}

// [B, H, T, d] values that differ everywhere, keys from values too.
std::vector<float> numbers(const ChunkShape& shape, float start) {
  std::vector<float> out(static_cast<std::size_t>(shape.batch * shape.heads * shape.tokens * shape.d));
  std::iota(out.begin(), out.end(), start);
  return out;
}

std::vector<TokenId> some_ids(std::size_t n, unsigned seed, Index vocab_size) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(n);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % static_cast<unsigned>(vocab_size));
  return ids;
}

TokenId argmax(const auto& row) {
  Index best = 0;
  row.maxCoeff(&best);
  return static_cast<TokenId>(best);
}

// A paged cache in blocks of two positions, so that a few of them are several blocks.
template <class Dtype>
struct Paged : PagedKVCache<Dtype> {
  explicit Paged(const CacheDims& dims) : PagedKVCache<Dtype>(dims, 2) {}
};

// The caches of one kind, by what they store.
struct AllContiguous {
  template <class Dtype>
  using Of = KVCache<Dtype>;
};
struct AllPaged {
  template <class Dtype>
  using Of = Paged<Dtype>;
};

template <class Cache>
constexpr bool is_paged = std::is_base_of_v<PagedKVCache<typename Cache::value_type>, Cache>;

// Bytes that a cache reserves: a paged one takes them of its pool as it grows.
template <class Cache>
std::size_t reserved(const Cache& cache) {
  if constexpr (is_paged<Cache>) {
    return cache.pool()->nbytes();
  } else {
    return cache.nbytes();
  }
}

template <class Cache>
void hand_example() {
  Cache cache({.n_layers = 1, .n_kv_heads = 1, .d_head = 2, .max_len = 4});
  CHECK(reserved(cache) == 64);
  CHECK(cache.seq_len() == 0);
  CHECK(cache.capacity() == 4);

  const RowMatrix prefill_k = rows({{1, 2}, {3, 4}});
  const RowMatrix prefill_v = rows({{10, 20}, {30, 40}});
  cache.update(0, ChunkView::from_projection(prefill_k, 1), ChunkView::from_projection(prefill_v, 1));
  CHECK(cache.seq_len() == 2);
  CHECK(cache.positions(1)[0] == 2);
  CHECK(cache.mask(1).matrix().all());
  CHECK(cache.mask(1).cols() == 3);

  const RowMatrix decode_k = rows({{5, 6}});
  const RowMatrix decode_v = rows({{50, 60}});
  const auto view = cache.update(0, ChunkView::from_projection(decode_k, 1), ChunkView::from_projection(decode_v, 1));
  CHECK(view.rows() == 3);
  CHECK(as_float(view.keys(0, 0)) == rows({{1, 2}, {3, 4}, {5, 6}}));
  CHECK(as_float(view.values(0, 0)) == rows({{10, 20}, {30, 40}, {50, 60}}));
  CHECK(cache.seq_len() == 3);
  CHECK(cache.mask(1).rows() == 1);
  CHECK(cache.mask(1).cols() == 4);
  CHECK(cache.mask(1).matrix().all());
}

template <class Cache>
void cached_logits_equal_full_recompute() {
  const AttentionModel model;
  Cache cache(cache_dims(model));
  std::vector<TokenId> ids = some_ids(7, 3, model.config.vocab_size);

  RowMatrix logits = model.forward(ids, cache.positions(7), cache);
  for (int step = 0; step < 16; ++step) {
    const RowMatrix full = model.forward_full(ids);
    const Index last = full.rows() - 1;
    CHECK((logits.row(logits.rows() - 1) - full.row(last)).cwiseAbs().maxCoeff() <= 1e-5F);
    const TokenId next = argmax(logits.row(logits.rows() - 1));
    CHECK(next == argmax(full.row(last)));
    ids.push_back(next);
    logits = model.forward(std::span(ids).last(1), cache.positions(1), cache);
  }
}

template <class Cache>
void chunked_prefill_equals_whole() {
  const AttentionModel model;
  const std::vector<TokenId> ids = some_ids(11, 4, model.config.vocab_size);
  Cache cache(cache_dims(model));
  std::size_t done = 0;
  const RowMatrix full = model.forward_full(ids);
  for (const std::size_t chunk : {3U, 1U, 5U, 2U}) {
    const Positions positions = cache.positions(static_cast<Index>(chunk));
    CHECK(positions.first() == static_cast<Index>(done));
    const RowMatrix logits = model.forward(std::span(ids).subspan(done, chunk), positions, cache);
    const RowMatrix expected = full.middleRows(static_cast<Index>(done), static_cast<Index>(chunk));
    CHECK((logits - expected).cwiseAbs().maxCoeff() <= 1e-5F);
    done += chunk;
  }
  CHECK(cache.seq_len() == 11);
}

template <class Cache>
void attention_through_the_cache() {
  // One group of query heads a kv head, up to every query head its own.
  for (const Index kv_heads : {1, 2, 4}) {
    AttentionModel::Config sizes;
    sizes.num_key_value_heads = kv_heads;
    const AttentionModel model(sizes, 17);
    const std::vector<TokenId> ids = some_ids(9, 5, sizes.vocab_size);
    Cache cache(cache_dims(model));
    const RowMatrix logits = model.forward(ids, cache.positions(9), cache);
    CHECK((logits - model.forward_full(ids)).cwiseAbs().maxCoeff() <= 1e-5F);
  }
}

template <class Cache>
void update_copies_and_checks() {
  constexpr Index batch = is_paged<Cache> ? 1 : 2;
  constexpr Index last = batch - 1;
  Cache cache({.n_layers = 2, .n_kv_heads = 2, .d_head = 3, .max_len = 4, .batch = batch});
  const ChunkShape shape{.batch = batch, .heads = 2, .tokens = 3, .d = 3};
  std::vector<float> k = numbers(shape, 1);
  std::vector<float> v = numbers(shape, 500);
  cache.update(0, ChunkView(k.data(), shape), ChunkView(v.data(), shape));
  const RowMatrix before_k = cache.view(0).keys(last, 1);
  const RowMatrix before_v = cache.view(0).values(last, 1);
  CHECK(before_k(0, 0) == 1.0F + static_cast<float>(9 * (2 * batch - 1)));
  CHECK(before_v(2, 2) == 500.0F + static_cast<float>(18 * batch - 1));

  // The inputs are copied: what becomes of them later does not matter.
  std::fill(k.begin(), k.end(), -1.0F);
  std::fill(v.begin(), v.end(), -2.0F);
  CHECK(cache.view(0).keys(last, 1) == before_k);
  CHECK(cache.view(0).values(last, 1) == before_v);

  const auto refused = [&](Index layer, const ChunkShape& k_shape, const ChunkShape& v_shape, auto exception) {
    using Exception = decltype(exception);
    const std::vector<float> some(1000, 7.0F);
    CHECK_THROWS_AS(cache.update(layer, ChunkView(some.data(), k_shape), ChunkView(some.data(), v_shape)), Exception);
    CHECK(cache.seq_len() == 0);
    CHECK(cache.seq_len(0) == 3);
    CHECK(cache.seq_len(1) == 0);
    CHECK(cache.view(0).keys(last, 1) == before_k);
    CHECK(cache.view(0).values(last, 1) == before_v);
  };
  const ChunkShape one{.batch = batch, .heads = 2, .tokens = 1, .d = 3};
  const auto but = [&one](auto change) {
    ChunkShape changed = one;
    change(changed);
    return changed;
  };
  const std::invalid_argument wrong("");
  refused(0, but([](ChunkShape& s) { s.batch = batch + 1; }), one, wrong);
  refused(0, one, but([](ChunkShape& s) { s.batch = 3; }), wrong);
  refused(0, but([](ChunkShape& s) { s.heads = 1; }), one, wrong);
  refused(0, one, but([](ChunkShape& s) { s.heads = 3; }), wrong);
  refused(0, but([](ChunkShape& s) { s.d = 2; }), one, wrong);
  refused(0, one, but([](ChunkShape& s) { s.d = 4; }), wrong);
  refused(1, one, but([](ChunkShape& s) { s.tokens = 2; }), wrong);
  refused(-1, one, one, std::out_of_range(""));
  refused(2, one, one, std::out_of_range(""));
  const ChunkShape two = but([](ChunkShape& s) { s.tokens = 2; });
  refused(0, two, two, CacheFull(0, 0, 0));
  const ChunkShape five = but([](ChunkShape& s) { s.tokens = 5; });
  refused(1, five, five, CacheFull(0, 0, 0));

  // Exactly N positions fit, and the message of a full cache has the numbers.
  cache.update(0, ChunkView(numbers(one, 9).data(), one), ChunkView(numbers(one, 8).data(), one));
  try {
    cache.update(0, ChunkView(k.data(), one), ChunkView(v.data(), one));
    FAIL("a full cache took another position");
  } catch (const CacheFull& full) {
    CHECK(full.requested() == 1);
    CHECK(full.seq_len() == 4);
    CHECK(full.capacity() == 4);
    CHECK(std::string(full.what()).find("4 of 4") != std::string::npos);
  }

  // A chunk itself has sizes and a pointer.
  CHECK_THROWS_AS(ChunkView(nullptr, one), std::invalid_argument);
  CHECK_THROWS_AS(ChunkView(k.data(), but([](ChunkShape& s) { s.tokens = 0; })), std::invalid_argument);
  CHECK_THROWS_AS(ChunkView(k.data(), but([](ChunkShape& s) { s.d = -1; })), std::invalid_argument);
  const RowMatrix odd = RowMatrix::Zero(2, 5);
  CHECK_THROWS_AS(ChunkView::from_projection(odd, 2), std::invalid_argument);
  CHECK_THROWS_AS(ChunkView::from_projection(odd, 0), std::invalid_argument);
  CHECK_THROWS_AS(ChunkView::from_projection(odd, 1, 3), std::invalid_argument);

  // So does a cache.
  using Dims = CacheDims;
  CHECK_THROWS_AS(Cache(Dims{.n_layers = 0, .n_kv_heads = 1, .d_head = 1, .max_len = 1}), std::invalid_argument);
  CHECK_THROWS_AS(Cache(Dims{.n_layers = 1, .n_kv_heads = -1, .d_head = 1, .max_len = 1}), std::invalid_argument);
  CHECK_THROWS_AS(Cache(Dims{.n_layers = 1, .n_kv_heads = 1, .d_head = 0, .max_len = 1}), std::invalid_argument);
  CHECK_THROWS_AS(Cache(Dims{.n_layers = 1, .n_kv_heads = 1, .d_head = 1, .max_len = 0}), std::invalid_argument);
  CHECK_THROWS_AS(Cache(Dims{.n_layers = 1, .n_kv_heads = 1, .d_head = 1, .max_len = 1, .batch = 0}), std::invalid_argument);
  const Index huge = std::numeric_limits<Index>::max() / 2;
  CHECK_THROWS_AS(Cache(Dims{.n_layers = 1, .n_kv_heads = 1, .d_head = 1, .max_len = huge}), std::length_error);
  CHECK_THROWS_AS(Cache(Dims{.n_layers = huge, .n_kv_heads = huge, .d_head = 4, .max_len = huge}), std::length_error);
}

template <class Cache>
void seq_len_commits_after_every_layer() {
  Cache cache({.n_layers = 3, .n_kv_heads = 1, .d_head = 2, .max_len = 8});
  const RowMatrix chunk = rows({{1, 2}, {3, 4}});
  const ChunkView view = ChunkView::from_projection(chunk, 1);
  const Positions positions = cache.positions(2);
  for (Index layer = 0; layer < 3; ++layer) {
    CHECK(cache.seq_len() == 0);
    CHECK(cache.positions(2).first() == 0);
    CHECK(cache.update(layer, view, view).rows() == 2);
    CHECK(cache.seq_len(layer) == 2);
  }
  CHECK(cache.seq_len() == 2);
  CHECK(positions.first() == 0);  // a value, taken before the pass
  CHECK(std::vector<Index>(positions.begin(), positions.end()) == std::vector<Index>{0, 1});

  // Layers may come in any order; the slowest one counts.
  cache.update(2, view, view);
  cache.update(0, view, view);
  CHECK(cache.seq_len() == 2);
  cache.update(1, view, view);
  CHECK(cache.seq_len() == 4);
  CHECK_THROWS_AS(static_cast<void>(cache.seq_len(3)), std::out_of_range);
  CHECK_THROWS_AS(static_cast<void>(cache.positions(0)), std::invalid_argument);
  CHECK_THROWS_AS(static_cast<void>(cache.mask(-1)), std::invalid_argument);
}

template <class Cache>
void mask_is_causal_with_offset() {
  Cache cache({.n_layers = 1, .n_kv_heads = 1, .d_head = 1, .max_len = 16});
  for (const Index past : {0, 1, 5}) {
    cache.clear();
    if (past > 0) {
      const RowMatrix chunk = RowMatrix::Ones(past, 1);
      cache.update(0, ChunkView::from_projection(chunk, 1), ChunkView::from_projection(chunk, 1));
    }
    for (const Index tokens : {1, 2, 4}) {
      const CausalMask mask = cache.mask(tokens);
      const CausalMask::Matrix matrix = mask.matrix();
      REQUIRE(matrix.rows() == tokens);
      REQUIRE(matrix.cols() == past + tokens);
      for (Index i = 0; i < tokens; ++i) {
        for (Index j = 0; j < past + tokens; ++j) CHECK(matrix(i, j) == (j <= past + i));
        CHECK(matrix.row(i).count() == mask.visible(i));
      }
    }
  }
}

template <class Cache>
void truncate_rolls_back() {
  const AttentionModel model;
  const std::vector<TokenId> ids = some_ids(12, 6, model.config.vocab_size);
  const std::vector<TokenId> others = some_ids(5, 60, model.config.vocab_size);
  for (const Index kept : {0, 1, 7, 12}) {
    Cache cache(cache_dims(model));
    model.forward(ids, cache.positions(12), cache);
    cache.truncate(kept);
    CHECK(cache.seq_len() == kept);
    for (Index layer = 0; layer < model.config.num_hidden_layers; ++layer) CHECK(cache.seq_len(layer) == kept);
    const RowMatrix logits = model.forward(others, cache.positions(5), cache);

    Cache fresh(cache_dims(model));
    if (kept > 0) model.forward(std::span(ids).first(static_cast<std::size_t>(kept)), fresh.positions(kept), fresh);
    CHECK(logits == model.forward(others, fresh.positions(5), fresh));
  }

  Cache cache(cache_dims(model));
  model.forward(std::span(ids).first(6), cache.positions(6), cache);
  CHECK_THROWS_AS(cache.truncate(7), std::out_of_range);
  CHECK_THROWS_AS(cache.truncate(-1), std::out_of_range);
  CHECK(cache.seq_len() == 6);

  // A pass that died after one layer: its rows count for nothing, and truncating to the committed length mends it.
  const RowMatrix chunk = RowMatrix::Ones(2, model.config.num_key_value_heads * model.config.head_dim);
  const ChunkView view = ChunkView::from_projection(chunk, model.config.num_key_value_heads);
  cache.update(0, view, view);
  CHECK(cache.seq_len(0) == 8);
  CHECK_THROWS_AS(cache.truncate(7), std::out_of_range);
  CHECK(cache.seq_len(0) == 8);
  cache.truncate(cache.seq_len());
  CHECK(cache.seq_len(0) == 6);
  const RowMatrix logits = model.forward(std::span(ids).subspan(6), cache.positions(6), cache);
  CHECK((logits - model.forward_full(ids).bottomRows(6)).cwiseAbs().maxCoeff() <= 1e-5F);

  // Append six, clear, append three: positions 0, 1, 2.
  cache.clear();
  CHECK(cache.seq_len() == 0);
  CHECK(cache.positions(3) == Positions(0, 3));
  model.forward(std::span(ids).first(3), cache.positions(3), cache);
  CHECK(cache.seq_len() == 3);
}

}  // namespace

TEST_CASE("hand_example") {
  hand_example<KVCache<float>>();
  hand_example<Paged<float>>();
}

TEST_CASE("cached_logits_equal_full_recompute") {
  cached_logits_equal_full_recompute<KVCache<float>>();
  cached_logits_equal_full_recompute<Paged<float>>();
}

TEST_CASE("chunked_prefill_equals_whole") {
  chunked_prefill_equals_whole<KVCache<float>>();
  chunked_prefill_equals_whole<Paged<float>>();
}

TEST_CASE("attention_through_the_cache") {
  attention_through_the_cache<KVCache<float>>();
  attention_through_the_cache<Paged<float>>();
}

TEST_CASE("update_copies_and_checks") {
  update_copies_and_checks<KVCache<float>>();
  update_copies_and_checks<Paged<float>>();
}

TEST_CASE("seq_len_commits_after_every_layer") {
  seq_len_commits_after_every_layer<KVCache<float>>();
  seq_len_commits_after_every_layer<Paged<float>>();
}

TEST_CASE("mask_is_causal_with_offset") {
  mask_is_causal_with_offset<KVCache<float>>();
  mask_is_causal_with_offset<Paged<float>>();
}

TEST_CASE("truncate_rolls_back") {
  truncate_rolls_back<KVCache<float>>();
  truncate_rolls_back<Paged<float>>();
}

namespace {

template <class Caches, class Dtype>
void check_rounding() {
  const CacheDims dims{.n_layers = 2, .n_kv_heads = 1, .d_head = 4, .max_len = 8};
  typename Caches::template Of<Dtype> cache(dims);
  CHECK(reserved(cache) * 2 == reserved(typename Caches::template Of<float>(dims)));

  // Between the rounded neighbours of every type; ties; what only a 32-bit type can hold.
  const RowMatrix k = rows({{0.1F, 1.0F / 3.0F, 2049.0F, -1e-8F}, {1.0009765625F, 257.0F, -0.2F, 0.0F}});
  const RowMatrix v = rows({{70000.0F, -3.14159265F, 5e-5F, 1.0F}, {1e30F, 3.4e38F, -1e30F, 2.5F}});
  const auto rounded = [](const RowMatrix& m) -> RowMatrix {
    return m.unaryExpr([](float x) { return static_cast<float>(Dtype(x)); });
  };
  auto view = cache.update(0, ChunkView::from_projection(k, 1), ChunkView::from_projection(v, 1));
  CHECK(as_float(view.keys(0, 0)) == rounded(k));  // the new chunk too
  CHECK(as_float(view.keys(0, 0)) != k);
  CHECK(as_float(view.values(0, 0)) == rounded(v));

  const std::size_t infinite = static_cast<std::size_t>(rounded(v).array().isInf().count());
  CHECK(infinite == (std::is_same_v<Dtype, Eigen::half> ? 4 : 1));
  CHECK(cache.stats().overflowed == infinite);
  // An infinity that comes in is no overflow.
  const RowMatrix infinities = RowMatrix::Constant(1, 4, std::numeric_limits<float>::infinity());
  view = cache.update(0, ChunkView::from_projection(infinities, 1), ChunkView::from_projection(infinities, 1));
  CHECK(cache.stats().overflowed == infinite);
  // What was stored before is shown unchanged.
  CHECK(as_float(view.keys(0, 0)).topRows(2) == rounded(k));
}

}  // namespace

TEST_CASE("float16_cache_rounds_what_it_stores") {
  check_rounding<AllContiguous, Eigen::half>();
  check_rounding<AllContiguous, Eigen::bfloat16>();
  check_rounding<AllPaged, Eigen::half>();
  check_rounding<AllPaged, Eigen::bfloat16>();
}

namespace {

template <class Caches>
void float16_generation_stays_close() {
  const AttentionModel model;
  typename Caches::template Of<float> exact(cache_dims(model));
  typename Caches::template Of<Eigen::half> half(cache_dims(model));
  std::vector<TokenId> ids = some_ids(8, 9, model.config.vocab_size);
  RowMatrix expected = model.forward(ids, exact.positions(8), exact);
  RowMatrix logits = model.forward(ids, half.positions(8), half);
  for (int step = 0; step < 24; ++step) {
    CHECK((logits - expected).cwiseAbs().maxCoeff() <= 2e-2F);
    const TokenId next = argmax(expected.row(expected.rows() - 1));
    CHECK(argmax(logits.row(logits.rows() - 1)) == next);
    ids.push_back(next);
    expected = model.forward(std::span(ids).last(1), exact.positions(1), exact);
    logits = model.forward(std::span(ids).last(1), half.positions(1), half);
  }
}

}  // namespace

TEST_CASE("float16_generation_stays_close") {
  float16_generation_stays_close<AllContiguous>();
  float16_generation_stays_close<AllPaged>();
}
