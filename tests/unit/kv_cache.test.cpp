// SPDX-License-Identifier: Apache-2.0
#include "support/attention_model.hpp"

#include <tinyllm/cache/kv_cache.hpp>
#include <tinyllm/cache/recompute.hpp>
#include <tinyllm/generate/causal_lm.hpp>

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <limits>
#include <random>
#include <type_traits>

using namespace tinyllm;
using test_support::AttentionModel;

template class tinyllm::KVCache<float>;
template class tinyllm::KVCache<Eigen::half>;
template class tinyllm::KVCache<Eigen::bfloat16>;
template class tinyllm::KVCache<std::int8_t>;
template class tinyllm::KVView<float>;
template class tinyllm::KVView<std::int8_t>;

namespace {

constexpr CacheDims small{.n_layers = 1, .n_kv_heads = 2, .d_head = 3, .max_len = 6};

// Bytes of this process that are in memory.
std::size_t resident_bytes() {
  std::size_t total = 0;
  std::size_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

TEST_CASE("chunk view: a projection is read in either storage order, and through blocks and strides") {
  const RowMatrix x = RowMatrix::Random(4, 6);  // [T = 4, H·d = 2·3]
  const Eigen::MatrixXf columns = x;
  RowMatrix wide = RowMatrix::Constant(6, 9, -7.0F);
  wide.block(1, 2, 4, 6) = x;

  const auto stored = [](const ChunkView& chunk) {
    KVCache<float> cache(small);
    cache.update(0, chunk, chunk);
    RowMatrix out(4, 6);
    out << RowMatrix(cache.view(0).keys(0, 0)), RowMatrix(cache.view(0).values(0, 1));
    return out;
  };
  CHECK(stored(ChunkView::from_projection(x, 2)) == x);
  CHECK(stored(ChunkView::from_projection(columns, 2)) == x);
  CHECK(stored(ChunkView::from_projection(wide.block(1, 2, 4, 6), 2)) == x);

  // [B·T, H·d]: sequence after sequence.
  KVCache<float> two({.n_layers = 1, .n_kv_heads = 2, .d_head = 3, .max_len = 6, .batch = 2});
  two.update(0, ChunkView::from_projection(x, 2, 2), ChunkView::from_projection(columns, 2, 2));
  for (Index b = 0; b < 2; ++b) {
    for (Index h = 0; h < 2; ++h) {
      CHECK(RowMatrix(two.view(0).keys(b, h)) == x.block(2 * b, 3 * h, 2, 3));
      CHECK(RowMatrix(two.view(0).values(b, h)) == x.block(2 * b, 3 * h, 2, 3));
    }
  }
}

static_assert(AttentionCache<KVCache<Eigen::half>> && AttentionCache<RecomputeCache>);
static_assert(!RecomputesEverything<KVCache<float>> && RecomputesEverything<RecomputeCache>);

TEST_CASE("chunk view: sizes whose product overflows are refused") {
  const float x = 0;
  const Index huge = Index{1} << 40;
  CHECK_THROWS_AS(ChunkView(&x, {.batch = 1, .heads = huge, .tokens = huge, .d = 2}), std::length_error);
}

TEST_CASE("kv cache: views show their rows after later appends, and storage is aligned") {
  KVCache<float> cache(small);
  const RowMatrix first = RowMatrix::Random(2, 6);
  const RowMatrix second = RowMatrix::Random(3, 6);
  const auto before = cache.update(0, ChunkView::from_projection(first, 2), ChunkView::from_projection(first, 2));
  cache.update(0, ChunkView::from_projection(second, 2), ChunkView::from_projection(second, 2));
  CHECK(before.rows() == 2);
  CHECK(RowMatrix(before.keys(0, 1)) == first.rightCols(3));
  CHECK(cache.view(0).rows() == 5);
  CHECK(cache.view(0).n_segments() == 1);
  CHECK(reinterpret_cast<std::uintptr_t>(before.keys(0, 0).data()) % 64 == 0);
  CHECK_THROWS(static_cast<void>(before.keys(0, 2)));
  CHECK_THROWS_AS(static_cast<void>(cache.view(1)), std::out_of_range);
}

TEST_CASE("kv cache: an all-zero key row is a row, and the first append may fill the cache") {
  KVCache<float> cache(small);
  const RowMatrix zero = RowMatrix::Zero(6, 6);
  const RowMatrix seven = RowMatrix::Zero(7, 6);
  CHECK_THROWS_AS(cache.update(0, ChunkView::from_projection(seven, 2), ChunkView::from_projection(seven, 2)), CacheFull);
  CHECK(cache.seq_len() == 0);
  cache.update(0, ChunkView::from_projection(zero, 2), ChunkView::from_projection(zero, 2));
  CHECK(cache.seq_len() == 6);
}

TEST_CASE_TEMPLATE("kv cache: garbage behind the fill count changes nothing", Dtype, float, Eigen::half, Eigen::bfloat16) {
  const AttentionModel model;
  const std::vector<TokenId> ids = {5, 9, 2, 44, 13, 7, 7, 30, 21};
  const RowMatrix poison = RowMatrix::Constant(20, model.config.num_key_value_heads * model.config.head_dim,
                                               std::numeric_limits<float>::quiet_NaN());
  KVCache<Dtype> clean(cache_dims(model));
  KVCache<Dtype> dirty(cache_dims(model));
  for (Index layer = 0; layer < model.config.num_hidden_layers; ++layer) {
    dirty.update(layer, ChunkView::from_projection(poison, 2), ChunkView::from_projection(poison, 2));
  }
  dirty.truncate(0);
  for (std::size_t n = 0; n < ids.size(); ++n) {
    const auto one = std::span(ids).subspan(n, 1);
    CHECK(model.forward(one, dirty.positions(1), dirty) == model.forward(one, clean.positions(1), clean));
  }
}

TEST_CASE("kv cache: a batch of the same sequence twice equals two single ones") {
  KVCache<Eigen::half> both({.n_layers = 1, .n_kv_heads = 2, .d_head = 3, .max_len = 6, .batch = 2});
  KVCache<Eigen::half> single(small);
  for (const Index tokens : {3, 1, 2}) {
    const RowMatrix k = RowMatrix::Random(tokens, 6);
    const RowMatrix v = RowMatrix::Random(tokens, 6);
    RowMatrix k2(2 * tokens, 6);
    RowMatrix v2(2 * tokens, 6);
    k2 << k, k;
    v2 << v, v;
    both.update(0, ChunkView::from_projection(k2, 2, 2), ChunkView::from_projection(v2, 2, 2));
    single.update(0, ChunkView::from_projection(k, 2), ChunkView::from_projection(v, 2));
  }
  for (Index b = 0; b < 2; ++b) {
    for (Index h = 0; h < 2; ++h) {
      CHECK(both.view(0).keys(b, h) == single.view(0).keys(0, h));
      CHECK(both.view(0).values(b, h) == single.view(0).values(0, h));
    }
  }
}

TEST_CASE("kv cache: moves leave the storage where it is, a clone is deep") {
  static_assert(!std::is_copy_constructible_v<KVCache<float>> && std::is_nothrow_move_constructible_v<KVCache<float>>);
  KVCache<float> cache(small);
  const RowMatrix x = RowMatrix::Random(4, 6);
  const auto view = cache.update(0, ChunkView::from_projection(x, 2), ChunkView::from_projection(x, 2));
  KVCache<float> copy = cache.clone();
  KVCache<float> moved = std::move(cache);
  CHECK(moved.view(0).keys(0, 0).data() == view.keys(0, 0).data());
  CHECK(moved.seq_len() == 4);

  copy.truncate(1);
  const RowMatrix other = RowMatrix::Constant(3, 6, 9.0F);
  copy.update(0, ChunkView::from_projection(other, 2), ChunkView::from_projection(other, 2));
  CHECK(RowMatrix(moved.view(0).keys(0, 0)) == x.leftCols(3));
  CHECK(RowMatrix(copy.view(0).values(0, 1)).row(0) == x.row(0).tail(3));
  CHECK(copy.dims() == small);
}

TEST_CASE("kv cache: a clone of uneven layers is as uneven, counts included") {
  KVCache<Eigen::half> cache({.n_layers = 2, .n_kv_heads = 1, .d_head = 2, .max_len = 4});
  const RowMatrix x = RowMatrix::Constant(3, 2, 1e6F);
  cache.update(1, ChunkView::from_projection(x, 1), ChunkView::from_projection(x, 1));
  const KVCache<Eigen::half> copy = cache.clone();
  CHECK(copy.seq_len(0) == 0);
  CHECK(copy.seq_len(1) == 3);
  CHECK(copy.stats().overflowed == 12);
  CHECK(copy.view(1).values(0, 0) == cache.view(1).values(0, 0));
}

TEST_CASE("kv cache: a large one costs address space, not memory, until it is used") {
  // Larger than the memory of most machines.
  const KVCache<Eigen::half> giant({.n_layers = 128, .n_kv_heads = 8, .d_head = 128, .max_len = 1 << 20});
  CHECK(giant.nbytes() == std::size_t{1} << 39);
  const std::size_t before = resident_bytes();
  KVCache<float> cache({.n_layers = 8, .n_kv_heads = 8, .d_head = 64, .max_len = 131'072});
  CHECK(cache.nbytes() == std::size_t{2} * 8 * 8 * 64 * 131'072 * 4);  // 4 GiB
  const RowMatrix x = RowMatrix::Ones(4, 8 * 64);
  for (Index layer = 0; layer < 8; ++layer) {
    cache.update(layer, ChunkView::from_projection(x, 8), ChunkView::from_projection(x, 8));
  }
  CHECK(resident_bytes() - before < std::size_t{64} << 20);
}

TEST_CASE("kv cache: offsets beyond 2^32 elements") {
  // 2·2·2^30·2 elements: the last layer's values lie beyond 32 bits. Only the pages that are written exist.
  const Index max_len = (Index{1} << 30) + 5;
  KVCache<Eigen::half> cache({.n_layers = 2, .n_kv_heads = 1, .d_head = 2, .max_len = max_len});
  const RowMatrix x = (RowMatrix(2, 2) << 1, 2, 3, 4).finished();
  const RowMatrix y = (RowMatrix(2, 2) << 5, 6, 7, 8).finished();
  cache.update(1, ChunkView::from_projection(x, 1), ChunkView::from_projection(y, 1));
  cache.update(0, ChunkView::from_projection(y, 1), ChunkView::from_projection(x, 1));
  CHECK(RowMatrix(cache.view(1).keys(0, 0).cast<float>()) == x);
  CHECK(RowMatrix(cache.view(1).values(0, 0).cast<float>()) == y);
  CHECK(RowMatrix(cache.view(0).keys(0, 0).cast<float>()) == y);
  CHECK(cache.nbytes() == std::size_t{2} * 2 * 2 * static_cast<std::size_t>(max_len) * 2);
}

TEST_CASE("recompute cache: shows the chunk it was given and remembers nothing") {
  RecomputeCache cache;
  const RowMatrix k = RowMatrix::Random(3, 4);
  const RowMatrix v = RowMatrix::Random(3, 4);
  const auto view = cache.update(0, ChunkView::from_projection(k, 2), ChunkView::from_projection(v, 2));
  CHECK(view.rows() == 3);
  CHECK(RowMatrix(view.keys(0, 1)) == k.rightCols(2));
  CHECK(RowMatrix(view.values(0, 0)) == v.leftCols(2));
  CHECK(cache.seq_len() == 0);
  CHECK(cache.positions(5) == Positions(0, 5));
  CHECK(cache.mask(5).cols() == 5);
  CHECK_THROWS_AS(static_cast<void>(cache.positions(0)), std::invalid_argument);
  CHECK_NOTHROW(cache.truncate(0));
  CHECK_THROWS_AS(cache.truncate(1), std::out_of_range);
  const RowMatrix other = RowMatrix::Random(2, 4);
  CHECK_THROWS_AS(cache.update(0, ChunkView::from_projection(k, 2), ChunkView::from_projection(other, 2)),
                  std::invalid_argument);
  CHECK_THROWS_AS(cache.update(-1, ChunkView::from_projection(k, 2), ChunkView::from_projection(k, 2)), std::out_of_range);
}

TEST_CASE("chunk view: every size is at least one, and a shape that nobody filled in is one row of one number") {
  CHECK(ChunkShape{} == ChunkShape{.batch = 1, .heads = 1, .tokens = 1, .d = 1});
  CHECK(ChunkStrides{}.batch == 0);
  CHECK(ChunkStrides{}.head == 0);
  CHECK(ChunkStrides{}.token == 0);
  CHECK(ChunkStrides{}.element == 1);
  const float one = 7.0F;
  CHECK(*ChunkView(&one, ChunkShape{}).row(0, 0, 0) == 7.0F);
  for (const ChunkShape& shape :
       {ChunkShape{.batch = 0}, ChunkShape{.heads = 0}, ChunkShape{.tokens = 0}, ChunkShape{.d = 0}}) {
    CHECK_THROWS_AS(ChunkView(&one, shape), std::invalid_argument);
  }
  const RowMatrix x = RowMatrix::Random(4, 6);
  CHECK_THROWS_AS(ChunkView::from_projection(x, 2, 0), std::invalid_argument);
  CHECK_THROWS_AS(ChunkView::from_projection(x, -1), std::invalid_argument);
  CHECK_THROWS_AS(ChunkView::from_projection(x, 4), std::invalid_argument);
  CHECK_NOTHROW(ChunkView::from_projection(x, 6, 4));
}

TEST_CASE("recompute cache: its chunk, length and bytes are those of the last update, whatever came before") {
  RecomputeCache cache;
  const RowMatrix big = RowMatrix::Random(6, 4);
  const RowMatrix small_one = RowMatrix::Random(2, 4);
  cache.update(0, ChunkView::from_projection(big, 2), ChunkView::from_projection(big, 2));
  const auto view = cache.update(1, ChunkView::from_projection(small_one, 2, 2), ChunkView::from_projection(small_one, 2, 2));
  CHECK(view.rows() == 1);
  CHECK(view.batch() == 2);
  CHECK(RowMatrix(view.keys(1, 0)) == small_one.row(1).leftCols(2));
  CHECK(RowMatrix(view.values(1, 1)) == small_one.row(1).rightCols(2));
  CHECK(cache.nbytes() == 2 * 2 * 4 * sizeof(float));
  CHECK(cache.capacity() == std::numeric_limits<Index>::max());
  CHECK_FALSE(cache.mask(3)(0, 1));
}

TEST_CASE("kv cache: a size that nobody filled in is refused") {
  CHECK_THROWS_AS(KVCache<float>(CacheDims{.n_kv_heads = 1, .d_head = 1, .max_len = 1}), std::invalid_argument);
  CHECK_THROWS_AS(KVCache<float>(CacheDims{.n_layers = 1, .d_head = 1, .max_len = 1}), std::invalid_argument);
  CHECK_THROWS_AS(KVCache<float>(CacheDims{.n_layers = 1, .n_kv_heads = 1, .max_len = 1}), std::invalid_argument);
  CHECK_THROWS_AS(KVCache<float>(CacheDims{.n_layers = 1, .n_kv_heads = 1, .d_head = 1}), std::invalid_argument);
  CHECK(KVCache<float>(CacheDims{.n_layers = 1, .n_kv_heads = 1, .d_head = 1, .max_len = 1}).dims().batch == 1);
}

TEST_CASE("kv cache: int8 rows have a scale each and are rounded once") {
  KVCache<std::int8_t> cache({.n_layers = 2, .n_kv_heads = 2, .d_head = 64, .max_len = 10});
  CHECK(cache.nbytes() == 2 * 2 * 2 * 10 * (64 + 4));
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  RowMatrix k(3, 128);
  RowMatrix v(3, 128);
  for (Index i = 0; i < k.size(); ++i) {
    k.data()[i] = normal(random) * static_cast<float>(1 + i / 64);
    v.data()[i] = normal(random) + 5.0F;
  }
  for (Index layer = 0; layer < 2; ++layer) {
    cache.update(layer, ChunkView::from_projection(k, 2), ChunkView::from_projection(v, 2));
  }
  const auto check = [&](const KVCache<std::int8_t>& held) {
    for (Index h = 0; h < 2; ++h) {
      const KVSegment<std::int8_t> segment = held.view(1).segment(0, h, 0);
      for (Index row = 0; row < 3; ++row) {
        CHECK(segment.key_scales[row] == k.block(row, h * 64, 1, 64).cwiseAbs().maxCoeff() / 127.0F);
        CHECK(segment.value_scales[row] == v.block(row, h * 64, 1, 64).cwiseAbs().maxCoeff() / 127.0F);
        for (Index c = 0; c < 64; ++c) {
          const float key = segment.key_scales[row] * static_cast<float>(segment.keys[row * 64 + c]);
          CHECK(std::abs(key - k(row, h * 64 + c)) <= 0.5001F * segment.key_scales[row]);
        }
      }
    }
  };
  check(cache);
  check(cache.clone());
  // What comes later changes nothing of what is held.
  for (Index layer = 0; layer < 2; ++layer) {
    cache.update(layer, ChunkView::from_projection((100 * v).eval(), 2), ChunkView::from_projection(k, 2));
  }
  check(cache);
  CHECK_THROWS_AS(
      KVCache<std::int8_t>({.n_layers = 1, .n_kv_heads = 1, .d_head = std::numeric_limits<Index>::max() - 2, .max_len = 1}),
      std::length_error);
}
