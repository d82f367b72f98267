// SPDX-License-Identifier: Apache-2.0
#include "support/attention_model.hpp"
#include "support/token_rows.hpp"

#include <tinyllm/cache/paged_kv_cache.hpp>
#include <tinyllm/core/executor.hpp>
#include <tinyllm/generate/causal_lm.hpp>

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <type_traits>

using namespace tinyllm;
using test_support::append;
using test_support::append_layer;
using test_support::AttentionModel;
using test_support::holds;
using test_support::shows;

template class tinyllm::BlockPool<float>;
template class tinyllm::PagedKVCache<float>;
template class tinyllm::PagedKVCache<Eigen::half>;
template class tinyllm::PagedKVCache<Eigen::bfloat16>;
template class tinyllm::PagedKVCache<std::int8_t>;
template class tinyllm::PagedKVView<float>;

namespace {

using Ids = std::vector<TokenId>;
using Pool = BlockPool<float>;
using Paged = PagedKVCache<float>;

constexpr BlockPoolDims small{.n_layers = 2, .n_kv_heads = 2, .d_head = 3, .n_blocks = 8, .block_size = 4};

std::shared_ptr<Pool> make_pool(Index n_blocks = 8) {
  BlockPoolDims dims = small;
  dims.n_blocks = n_blocks;
  return std::make_shared<Pool>(dims);
}

// n ids from `first` on.
Ids ids(Index n, TokenId first = 1) {
  Ids out(static_cast<std::size_t>(n));
  std::iota(out.begin(), out.end(), first);
  return out;
}

Ids joined(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

using Blocks = std::vector<BlockId>;
Blocks table_of(const Paged& cache) { return Blocks(cache.blocks().begin(), cache.blocks().end()); }

std::size_t resident_bytes() {
  std::size_t total = 0;
  std::size_t resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

static_assert(AttentionCache<PagedKVCache<Eigen::half>> && !RecomputesEverything<PagedKVCache<float>>);
static_assert(!std::is_copy_constructible_v<Paged> && std::is_nothrow_move_constructible_v<Paged> &&
              std::is_nothrow_move_assignable_v<Paged>);

TEST_CASE("paged cache: blocks are taken as it grows, each once for all layers, and bytes follow") {
  const auto pool = make_pool();
  CHECK(pool->nbytes() == std::size_t{2} * 2 * 2 * 3 * 32 * sizeof(float));
  CHECK(pool->block_nbytes() == pool->nbytes() / 8);
  CHECK(pool->capacity() == 32);
  Paged cache(pool);
  CHECK(cache.capacity() == 32);
  CHECK(cache.nbytes() == 0);
  CHECK(pool->ledger().free() == 8);
  append(cache, ids(1));
  CHECK(pool->ledger().free() == 7);
  append(cache, ids(3, 2));
  CHECK(pool->ledger().free() == 7);
  append_layer(cache, 0, ids(5, 5));
  CHECK(pool->ledger().free() == 5);
  CHECK(cache.seq_len() == 4);
  append_layer(cache, 1, ids(5, 5));
  CHECK(pool->ledger().free() == 5);
  CHECK(cache.nbytes() == 3 * pool->block_nbytes());
  CHECK(holds(cache, ids(9)));
  CHECK(table_of(cache) == Blocks{0, 1, 2});
  CHECK(cache.dims() == CacheDims{.n_layers = 2, .n_kv_heads = 2, .d_head = 3, .max_len = 32, .batch = 1});

  // A sequence may be shorter than its pool, never longer.
  CHECK(Paged(pool, 9).capacity() == 9);
  CHECK(Paged(pool, 99).capacity() == 32);
  CHECK_THROWS_AS(Paged(pool, 0), std::invalid_argument);
  CHECK_THROWS_AS(Paged(std::shared_ptr<Pool>()), std::invalid_argument);
  CHECK_THROWS_AS(Paged(CacheDims{.n_layers = 1, .n_kv_heads = 1, .d_head = 1, .max_len = 1}, 0), std::invalid_argument);
  CHECK_THROWS_AS(Paged(CacheDims{.n_layers = 1, .n_kv_heads = 1, .d_head = 1, .max_len = 1, .batch = 2}),
                  std::invalid_argument);
  CHECK_THROWS_AS(Pool(BlockPoolDims{.n_layers = 1, .n_kv_heads = 1, .d_head = 1}), std::invalid_argument);
}

TEST_CASE("paged cache: with a pool of its own it has room for exactly max_len positions") {
  Paged cache(CacheDims{.n_layers = 2, .n_kv_heads = 1, .d_head = 2, .max_len = 37});
  CHECK(cache.block_size() == 16);
  CHECK(cache.pool()->dims().n_blocks == 3);
  CHECK(cache.capacity() == 37);
  append(cache, ids(37));
  CHECK_THROWS_AS(append(cache, ids(1)), CacheFull);
  CHECK(holds(cache, ids(37)));
  CHECK(pool_dims(cache.dims(), 5, 8) ==
        BlockPoolDims{.n_layers = 2, .n_kv_heads = 1, .d_head = 2, .n_blocks = 5, .block_size = 8});
  CHECK(pool_dims(cache.dims(), std::nullopt, 37).n_blocks == 1);
  CHECK(pool_dims(cache.dims(), std::nullopt, 36).n_blocks == 2);
}

TEST_CASE("paged cache: views show their rows after later appends, whichever block they go to") {
  const auto pool = make_pool();
  Paged cache(pool);
  Paged other(pool);
  append(cache, ids(3));
  append(other, ids(2, 50));
  const auto before = cache.view(1);
  append(cache, ids(15, 4));
  CHECK(shows(before, 1, ids(3)));
  CHECK(before.contiguous());
  CHECK(RowMatrix(before.keys(0, 1)).rows() == 3);
  CHECK(before.n_segments() == 1);
  CHECK(cache.view(0).n_segments() == 5);
  CHECK(cache.view(0).block_size() == 4);
  CHECK_FALSE(cache.view(0).contiguous());  // the other sequence has a block between
  CHECK_THROWS(static_cast<void>(cache.view(0).keys(0, 0)));
  CHECK_THROWS(static_cast<void>(cache.view(0).segment(0, 2, 0)));
  CHECK_THROWS(static_cast<void>(cache.view(0).segment(1, 0, 0)));
  CHECK_THROWS(static_cast<void>(cache.view(0).segment(0, 0, 5)));
  CHECK_THROWS_AS(static_cast<void>(cache.view(2)), std::out_of_range);
  CHECK(other.view(0).contiguous());
  CHECK(RowMatrix(Paged(pool).view(0).values(0, 1)).rows() == 0);

  // A fork that writes replaces a block of its own; what the views of both show stays.
  Paged child = cache.fork(10);
  const auto shared = child.view(0);
  append(child, ids(1, 99));
  append(cache, ids(2, 77));
  CHECK(shows(shared, 0, ids(10)));
  CHECK(shows(before, 1, ids(3)));
  CHECK(reinterpret_cast<std::uintptr_t>(
            Paged(CacheDims{.n_layers = 1, .n_kv_heads = 1, .d_head = 1, .max_len = 9}).view(0).keys(0, 0).data()) %
            64 ==
        0);
}

TEST_CASE("paged cache: a fork shares blocks, and whoever writes into a shared one gets a copy") {
  const auto pool = make_pool(16);
  const BlockLedger& ledger = pool->ledger();
  for (Index n = 0; n <= 9; ++n) {
    CAPTURE(n);
    Paged parent(pool);
    append(parent, ids(9));
    Paged child = parent.fork(n);
    CHECK(holds(child, ids(n)));
    CHECK(ledger.held() == 3);
    CHECK(ledger.shared() == (n + 3) / 4);
    CHECK(child.nbytes() == static_cast<std::size_t>((n + 3) / 4) * pool->block_nbytes());

    append(child, ids(5, 100));
    CHECK(holds(child, joined(ids(n), ids(5, 100))));
    CHECK(holds(parent, ids(9)));
    CHECK(ledger.shared() == n / 4);  // full blocks stay shared, a partial one was copied
    append(parent, ids(4, 10));
    CHECK(holds(parent, ids(13)));
    CHECK(holds(child, joined(ids(n), ids(5, 100))));
  }
  CHECK(ledger.free() == 16);

  Paged parent(pool);
  append(parent, ids(6));
  CHECK_THROWS_AS(parent.fork(7), std::out_of_range);
  CHECK_THROWS_AS(parent.fork(-1), std::out_of_range);
  // The parent may be the one that writes first; the child then has the block alone.
  Paged child = parent.fork();
  const BlockId last = child.blocks()[1];
  append(parent, ids(1, 7));
  CHECK(parent.blocks()[1] != last);
  CHECK(ledger.shared() == 1);
  append(child, ids(1, 70));
  CHECK(child.blocks()[1] == last);
  CHECK(holds(parent, ids(7)));
  CHECK(holds(child, joined(ids(6), {70})));
}

TEST_CASE("paged cache: truncate gives blocks back, and that of a fork never touches its parent") {
  const auto pool = make_pool(16);
  for (Index n = 0; n <= 10; ++n) {
    CAPTURE(n);
    Paged parent(pool);
    append(parent, ids(10));
    Paged child = parent.fork();
    child.truncate(n);
    CHECK(pool->ledger().held() == 3);
    CHECK(pool->ledger().shared() == (n + 3) / 4);
    append(child, ids(6, 200));
    CHECK(holds(parent, ids(10)));
    CHECK(holds(child, joined(ids(n), ids(6, 200))));
    // And the other way round.
    Paged again = parent.fork();
    parent.truncate(n);
    append(parent, ids(4, 150));
    CHECK(holds(again, ids(10)));
    CHECK(holds(parent, joined(ids(n), ids(4, 150))));
    CHECK(holds(child, joined(ids(n), ids(6, 200))));
  }
  CHECK(pool->ledger().free() == 16);

  Paged cache(pool);
  append(cache, ids(9));
  cache.truncate(8);
  CHECK(cache.blocks().size() == 2);
  cache.truncate(1);
  CHECK(cache.blocks().size() == 1);
  cache.clear();
  CHECK(pool->ledger().free() == 16);
}

TEST_CASE("paged cache: a fork of a torn pass begins with what is committed, and truncate gives back what the pass took") {
  const auto pool = make_pool();
  Paged parent(pool);
  append(parent, ids(6));
  append_layer(parent, 0, ids(7, 100));
  CHECK(pool->ledger().held() == 4);
  Paged child = parent.fork();
  CHECK(holds(child, ids(6)));
  CHECK(child.blocks().size() == 2);
  // The other layer's rows go into the block that is shared: it is copied with what each layer has of it.
  append_layer(parent, 1, ids(7, 100));
  CHECK(holds(parent, joined(ids(6), ids(7, 100))));
  CHECK(holds(child, ids(6)));

  append_layer(child, 1, ids(9, 30));
  child.truncate(child.seq_len());
  CHECK(child.blocks().size() == 2);
  append(child, ids(3, 40));
  CHECK(holds(child, joined(ids(6), ids(3, 40))));
}

TEST_CASE("paged cache: forks may end in any order and leave no block behind") {
  std::vector<int> order = {0, 1, 2, 3};
  do {
    const auto pool = make_pool(32);
    std::vector<std::optional<Paged>> family;
    family.emplace_back(Paged(pool));
    append(*family[0], ids(6));
    family.emplace_back(family[0]->fork());
    family.emplace_back(family[1]->fork(5));
    append(*family[1], ids(3, 90));
    family.emplace_back(family[1]->fork(7));
    for (const int i : order) {
      family[static_cast<std::size_t>(i)].reset();
      if (family[0]) CHECK(holds(*family[0], ids(6)));
      if (family[1]) CHECK(holds(*family[1], joined(ids(6), ids(3, 90))));
      if (family[2]) CHECK(holds(*family[2], ids(5)));
      if (family[3]) CHECK(holds(*family[3], joined(ids(6), {90})));
    }
    CHECK(pool->ledger().free() == 32);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST_CASE("paged cache: out of blocks says how many, and changes nothing") {
  const auto pool = make_pool(4);
  Paged a(pool);
  Paged b(pool);
  append(a, ids(5));
  append(b, ids(4, 50));
  const TokenId one = 9;
  try {
    append(b, ids(5, 60));
    FAIL("there was one block for two");
  } catch (const OutOfBlocks& error) {
    CHECK(error.requested() == 5);
    CHECK(error.seq_len() == 4);
    CHECK(error.capacity() == 8);
    CHECK(error.blocks().needed == 2);
    CHECK(error.blocks().available == 1);
    CHECK(error.blocks().size == 4);
  }
  CHECK(holds(b, ids(4, 50)));
  CHECK(b.seq_len(0) == 4);
  CHECK(pool->ledger().free() == 1);
  append(b, ids(4, 54));

  // Appending behind a fork needs a block for the copy.
  Paged child = a.fork();
  try {
    append(child, Ids{one});
    FAIL("there was no block for a copy");
  } catch (const OutOfBlocks& error) {
    CHECK(error.capacity() == 5);
    CHECK(error.blocks().needed == 1);
    CHECK(error.blocks().available == 0);
  }
  CHECK(holds(child, ids(5)));
  CHECK(holds(a, ids(5)));
  CHECK_FALSE(child.reserve(1));
  CHECK(child.blocks_missing(1) == 1);
  b.clear();
  CHECK(child.reserve(1));
  CHECK(child.blocks_missing(1) == 0);
  append(child, Ids{one});
  CHECK(holds(child, joined(ids(5), {one})));
  CHECK(holds(a, ids(5)));
}

TEST_CASE("paged cache: out of blocks, a kept block that nobody else holds is room without a copy") {
  const auto pool = make_pool(2);
  Paged other(pool);
  REQUIRE(other.reserve(1));
  Paged cache(pool);
  append(cache, ids(4));
  pool->ledger().keep(cache.blocks()[0]);
  cache.truncate(1);
  CHECK(cache.blocks_missing(3) == 0);
  CHECK(cache.blocks_missing(4) == 1);
  try {
    append(cache, ids(4, 10));
    FAIL("there was no second block");
  } catch (const OutOfBlocks& error) {
    CHECK(error.capacity() == 4);
    CHECK(error.blocks().needed == 1);
    CHECK(error.blocks().available == 0);
  }
  append(cache, ids(3, 10));
  CHECK(holds(cache, joined(ids(1), ids(3, 10))));
}

TEST_CASE("paged cache: one that was moved from is empty and takes no more") {
  const auto pool = make_pool(2);
  Paged cache(pool);
  append(cache, ids(6));
  Paged moved = std::move(cache);
  Paged& left = cache;
  left.truncate(0);
  left.clear();
  CHECK(left.seq_len() == 0);
  CHECK(left.nbytes() == 0);
  CHECK(left.block_size() == 4);
  CHECK(left.blocks().empty());
  CHECK(left.positions(2).first() == 0);
  CHECK(left.mask(2).rows() == 2);
  CHECK_FALSE(left.reserve(1));
  CHECK_THROWS_AS(append_layer(left, 0, ids(1)), std::out_of_range);
  CHECK_THROWS_AS(left.view(0), std::out_of_range);
  CHECK_THROWS_AS(left.fork(), std::invalid_argument);
  CHECK_THROWS_AS(left.clone(), std::invalid_argument);
  CHECK(holds(moved, ids(6)));
  left = std::move(moved);
  CHECK(holds(left, ids(6)));
}

TEST_CASE("paged cache: what was reserved is there for the pass, and goes back if it is not used") {
  const auto pool = make_pool(4);
  Paged a(pool);
  Paged b(pool);
  CHECK(a.reserve(9));
  CHECK(a.seq_len() == 0);
  CHECK(pool->ledger().free() == 1);
  CHECK_FALSE(b.reserve(5));
  CHECK(pool->ledger().free() == 1);
  append(a, ids(9));
  CHECK(pool->ledger().free() == 1);
  CHECK(a.reserve(3));
  CHECK(pool->ledger().free() == 1);
  CHECK(a.reserve(4));
  CHECK(pool->ledger().free() == 0);
  a.truncate(9);
  CHECK(pool->ledger().free() == 1);
  CHECK_FALSE(a.reserve(std::numeric_limits<Index>::max()));
  CHECK_THROWS_AS(static_cast<void>(a.reserve(0)), std::invalid_argument);
  CHECK(holds(a, ids(9)));
}

TEST_CASE("paged cache: what was reserved for several sequences may be appended on several threads") {
  const auto pool =
      std::make_shared<Pool>(BlockPoolDims{.n_layers = 2, .n_kv_heads = 2, .d_head = 3, .n_blocks = 100, .block_size = 4});
  Paged common(pool);
  append(common, ids(6));
  std::vector<Paged> sequences;
  for (int i = 0; i < 8; ++i) {
    sequences.push_back(common.fork());
    CHECK(sequences.back().reserve(11));
  }
  ThreadPool threads(2);
  threads.run(8, [&](Index i) { append(sequences[static_cast<std::size_t>(i)], ids(11, static_cast<TokenId>(10 * i + 7))); });
  for (int i = 0; i < 8; ++i) CHECK(holds(sequences[static_cast<std::size_t>(i)], joined(ids(6), ids(11, 10 * i + 7))));
  CHECK(holds(common, ids(6)));
}

TEST_CASE("paged cache: moves take the blocks along, a clone shares nothing") {
  const auto pool = make_pool();
  Paged cache(pool);
  append(cache, ids(6));
  append_layer(cache, 1, ids(2, 7));
  const Paged copy = cache.clone();
  CHECK(copy.pool() != pool);
  CHECK(copy.seq_len(0) == 6);
  CHECK(shows(copy.view(1), 1, ids(8)));
  const Blocks table = table_of(cache);
  Paged moved = std::move(cache);
  CHECK(table_of(moved) == table);
  CHECK(pool->ledger().held() == 2);
  Paged other(pool);
  append(other, ids(3, 99));
  other = std::move(moved);
  CHECK(pool->ledger().held() == 2);
  other.truncate(6);
  CHECK(holds(other, ids(6)));
  append(other, ids(1, 200));
  CHECK(shows(copy.view(1), 1, ids(8)));
  // A sequence keeps its pool.
  std::optional<Paged> last{Paged(make_pool())};
  append(*last, ids(5));
  Paged survivor = last->fork();
  last.reset();
  CHECK(holds(survivor, ids(5)));
  survivor = Paged(make_pool());
  CHECK(survivor.seq_len() == 0);
}

TEST_CASE("paged cache: a sequence that begins with blocks must be empty and have as many as its positions take") {
  const auto pool = make_pool();
  Paged a(pool);
  append(a, ids(7));
  Paged b(pool);
  CHECK_THROWS_AS(b.begin_with(a.blocks(), 4), std::invalid_argument);
  CHECK_THROWS_AS(b.begin_with(a.blocks(), 9), std::invalid_argument);
  CHECK_THROWS_AS(b.begin_with(a.blocks().first(1), 5), std::invalid_argument);
  CHECK_THROWS_AS(b.begin_with(a.blocks(), -1), std::invalid_argument);
  CHECK_THROWS_AS(Paged(pool, 6).begin_with(a.blocks(), 7), std::invalid_argument);
  CHECK_THROWS_AS(a.begin_with(a.blocks(), 7), std::invalid_argument);
  CHECK(pool->ledger().shared() == 0);
  b.begin_with(a.blocks(), 5);
  CHECK(holds(b, ids(5)));
}

TEST_CASE_TEMPLATE("paged cache: garbage behind the fill count changes nothing, and it equals the contiguous cache", Dtype,
                   float, Eigen::half, Eigen::bfloat16, std::int8_t) {
  const AttentionModel model;
  const Ids known = {5, 9, 2, 44, 13, 7, 7, 30, 21};
  const RowMatrix poison = RowMatrix::Constant(20, model.config.num_key_value_heads * model.config.head_dim,
                                               std::numeric_limits<float>::quiet_NaN());
  for (const Index block_size : {1, 3, 16}) {
    KVCache<Dtype> contiguous(cache_dims(model));
    PagedKVCache<Dtype> paged(cache_dims(model), block_size);
    for (Index layer = 0; layer < model.config.num_hidden_layers; ++layer) {
      paged.update(layer, ChunkView::from_projection(poison, 2), ChunkView::from_projection(poison, 2));
    }
    paged.truncate(0);
    for (std::size_t n = 0; n < known.size(); ++n) {
      const auto one = std::span(known).subspan(n, 1);
      CHECK(model.forward(one, paged.positions(1), paged) == model.forward(one, contiguous.positions(1), contiguous));
    }
    CHECK(paged.stats().overflowed == contiguous.stats().overflowed);
  }
}

namespace {

// What a view shows of one head, scales included.
template <class View>
std::vector<float> stored_numbers(const View& view, Index head) {
  std::vector<float> numbers;
  for (Index i = 0; i < view.n_segments(); ++i) {
    const auto segment = view.segment(0, head, i);
    for (Index row = 0; row < segment.rows; ++row) {
      for (Index c = 0; c < view.d_head(); ++c) {
        numbers.push_back(static_cast<float>(segment.keys[row * view.d_head() + c]));
        numbers.push_back(static_cast<float>(segment.values[row * view.d_head() + c]));
      }
      numbers.push_back(segment.key_scales[row]);
      numbers.push_back(segment.value_scales[row]);
    }
  }
  return numbers;
}

}  // namespace

TEST_CASE("paged cache: int8 rows and their scales are those of the contiguous cache, also in forks and clones") {
  const CacheDims dims{.n_layers = 1, .n_kv_heads = 2, .d_head = 5, .max_len = 40};
  const auto pool = std::make_shared<BlockPool<std::int8_t>>(pool_dims(dims, 20, 4));
  CHECK(pool->block_nbytes() == 2 * 2 * 4 * (5 + sizeof(float)));
  const auto put = [](auto& cache, const RowMatrix& x) {
    const RowMatrix y = 3.0F * x.array() + 1.0F;
    cache.update(0, ChunkView::from_projection(x, 2), ChunkView::from_projection(y, 2));
  };
  const RowMatrix common = RowMatrix::Random(6, 10);
  const RowMatrix left = 5.0F * RowMatrix::Random(7, 10);
  const RowMatrix right = 0.1F * RowMatrix::Random(3, 10);
  KVCache<std::int8_t> expected_left(dims);
  KVCache<std::int8_t> expected_right(dims);
  PagedKVCache<std::int8_t> a(pool);
  put(a, common);
  put(expected_left, common);
  put(expected_right, common);
  PagedKVCache<std::int8_t> b = a.fork();
  put(a, left);
  put(b, right);
  put(expected_left, left);
  put(expected_right, right);
  const PagedKVCache<std::int8_t> copy = b.clone();
  for (Index h = 0; h < 2; ++h) {
    CHECK(stored_numbers(a.view(0), h) == stored_numbers(expected_left.view(0), h));
    CHECK(stored_numbers(b.view(0), h) == stored_numbers(expected_right.view(0), h));
    CHECK(stored_numbers(copy.view(0), h) == stored_numbers(expected_right.view(0), h));
  }
}

TEST_CASE("paged cache: values that overflow are counted, also for a fork") {
  PagedKVCache<Eigen::half> cache({.n_layers = 1, .n_kv_heads = 1, .d_head = 2, .max_len = 40}, 4);
  const RowMatrix x = RowMatrix::Constant(5, 2, 1e6F);
  const RowMatrix y = RowMatrix::Zero(5, 2);
  cache.update(0, ChunkView::from_projection(x, 1), ChunkView::from_projection(y, 1));
  CHECK(cache.stats().overflowed == 10);
  CHECK(cache.fork(1).stats().overflowed == 10);
  CHECK(cache.clone().stats().overflowed == 10);
}

TEST_CASE("block pool: a large one costs address space, not memory, until it is used") {
  const std::size_t before = resident_bytes();
  const auto pool = std::make_shared<BlockPool<Eigen::half>>(
      BlockPoolDims{.n_layers = 32, .n_kv_heads = 8, .d_head = 128, .n_blocks = 1 << 15});
  CHECK(pool->nbytes() == std::size_t{1} << 36);
  PagedKVCache<Eigen::half> cache(pool);
  append(cache, ids(20));
  CHECK(holds(cache, ids(20)));
  CHECK(resident_bytes() - before < std::size_t{32} << 20);
}
