// SPDX-License-Identifier: Apache-2.0
// The contract of the latent cache: the rules of KVCache on [B, T, r] and [B, T, d_R].
#include <tinyllm/cache/latent_cache.hpp>

#include <doctest/doctest.h>

#include <limits>
#include <type_traits>

using namespace tinyllm;

template class tinyllm::LatentCache<float>;
template class tinyllm::LatentCache<Eigen::half>;
template class tinyllm::LatentCache<Eigen::bfloat16>;

namespace {

constexpr LatentDims dims{.n_layers = 2, .d_latent = 3, .d_rope = 2, .max_len = 5, .batch = 2};

// [B·T, r] latents and [B·T, d_R] rotary keys that differ everywhere.
struct Chunk {
  explicit Chunk(Index tokens, float start = 1) : c(2 * tokens, 3), k(2 * tokens, 2) {
    for (Index i = 0; i < c.size(); ++i) c.data()[i] = start + static_cast<float>(i);
    for (Index i = 0; i < k.size(); ++i) k.data()[i] = -start - static_cast<float>(i) - 0.5F;
  }
  ChunkView latents() const { return ChunkView::from_projection(c, 1, 2); }
  ChunkView rope_keys() const { return ChunkView::from_projection(k, 1, 2); }
  RowMatrix c;
  RowMatrix k;
};

template <class Dtype>
void append(LatentCache<Dtype>& cache, const Chunk& chunk) {
  for (Index layer = 0; layer < cache.dims().n_layers; ++layer) cache.update(layer, chunk.latents(), chunk.rope_keys());
}

}  // namespace

TEST_CASE("latent_cache") {
  LatentCache<float> cache(dims);
  CHECK(cache.nbytes() == 2 * 2 * 5 * (3 + 2) * 4);
  CHECK(cache.capacity() == 5);
  CHECK(cache.dims() == dims);

  // All that the layer holds, past and new, both parts of every sequence.
  const Chunk first(2);
  const Chunk second(1, 100);
  auto view = cache.update(0, first.latents(), first.rope_keys());
  CHECK(cache.seq_len() == 0);  // the second layer has nothing yet
  CHECK(cache.seq_len(0) == 2);
  cache.update(1, first.latents(), first.rope_keys());
  CHECK(cache.seq_len() == 2);
  CHECK(cache.positions(3) == Positions(2, 3));
  CHECK(cache.mask(2).cols() == 4);
  CHECK_FALSE(cache.mask(2)(0, 3));
  view = cache.update(0, second.latents(), second.rope_keys());
  CHECK(view.rows() == 3);
  CHECK(view.batch() == 2);
  for (Index b = 0; b < 2; ++b) {
    RowMatrix c(3, 3);
    c << first.c.middleRows(2 * b, 2), second.c.row(b);
    RowMatrix k(3, 2);
    k << first.k.middleRows(2 * b, 2), second.k.row(b);
    CHECK(RowMatrix(view.latents(b)) == c);
    CHECK(RowMatrix(view.rope_keys(b)) == k);
    CHECK(RowMatrix(view.both(b)).leftCols(3) == c);
    CHECK(RowMatrix(view.both(b)).rightCols(2) == k);
  }
  CHECK(RowMatrix(cache.view(1).latents(1)) == first.c.bottomRows(2));

  // A torn pass counts for nothing, and is mended.
  CHECK(cache.seq_len() == 2);
  CHECK_THROWS_AS(cache.truncate(3), std::out_of_range);
  CHECK_THROWS_AS(cache.truncate(-1), std::out_of_range);
  CHECK(cache.seq_len(0) == 3);
  cache.truncate(cache.seq_len());
  CHECK(cache.seq_len(0) == 2);

  // Errors change nothing.
  const RowMatrix before = cache.view(0).both(1);
  const Chunk one(1, 7);
  const RowMatrix wide = RowMatrix::Ones(2, 4);
  const RowMatrix single = RowMatrix::Ones(1, 3);
  CHECK_THROWS_AS(cache.update(0, one.rope_keys(), one.latents()), std::invalid_argument);
  CHECK_THROWS_AS(cache.update(0, ChunkView::from_projection(wide, 1, 2), one.rope_keys()), std::invalid_argument);
  CHECK_THROWS_AS(cache.update(0, one.latents(), ChunkView::from_projection(wide, 1, 2)), std::invalid_argument);
  CHECK_THROWS_AS(cache.update(0, ChunkView::from_projection(single, 1), one.rope_keys()), std::invalid_argument);
  CHECK_THROWS_AS(cache.update(0, Chunk(2).latents(), one.rope_keys()), std::invalid_argument);
  CHECK_THROWS_AS(cache.update(2, one.latents(), one.rope_keys()), std::out_of_range);
  CHECK_THROWS_AS(cache.update(-1, one.latents(), one.rope_keys()), std::out_of_range);
  CHECK_THROWS_AS(cache.update(0, Chunk(4).latents(), Chunk(4).rope_keys()), CacheFull);
  CHECK(cache.seq_len(0) == 2);
  CHECK(RowMatrix(cache.view(0).both(1)) == before);
  append(cache, Chunk(3));  // exactly N positions fit
  CHECK(cache.seq_len() == 5);
  CHECK_THROWS_AS(cache.update(0, one.latents(), one.rope_keys()), CacheFull);

  // Going back and on again is never having been there.
  cache.truncate(1);
  append(cache, second);
  LatentCache<float> fresh(dims);
  Chunk start(1);
  start.c << first.c.row(0), first.c.row(2);
  start.k << first.k.row(0), first.k.row(2);
  append(fresh, start);
  append(fresh, second);
  for (Index b = 0; b < 2; ++b) CHECK(RowMatrix(cache.view(1).both(b)) == RowMatrix(fresh.view(1).both(b)));
  cache.clear();
  CHECK(cache.seq_len() == 0);
  CHECK(cache.positions(1)[0] == 0);

  CHECK_THROWS_AS(LatentCache<float>({.n_layers = 1, .d_latent = 0, .d_rope = 1, .max_len = 1}), std::invalid_argument);
  CHECK_THROWS_AS(LatentCache<float>({.n_layers = 1, .d_latent = 1, .d_rope = -1, .max_len = 1}), std::invalid_argument);
  CHECK_THROWS_AS(LatentCache<float>({.n_layers = 0, .d_latent = 1, .d_rope = 1, .max_len = 1}), std::invalid_argument);
  const Index huge = std::numeric_limits<Index>::max() / 2;
  CHECK_THROWS_AS(LatentCache<float>({.n_layers = 1, .d_latent = 2, .d_rope = 1, .max_len = huge}), std::length_error);
}

TEST_CASE_TEMPLATE("latent cache: 16-bit storage shows rounded values and counts what overflows", Dtype, Eigen::half,
                   Eigen::bfloat16) {
  LatentCache<Dtype> cache({.n_layers = 1, .d_latent = 2, .d_rope = 2, .max_len = 4});
  CHECK(cache.nbytes() == 4 * 4 * 2);
  const RowMatrix c = (RowMatrix(1, 2) << 0.1F, 3.4e38F).finished();
  const RowMatrix k = (RowMatrix(1, 2) << -0.3F, 1e6F).finished();
  const auto view = cache.update(0, ChunkView::from_projection(c, 1), ChunkView::from_projection(k, 1));
  CHECK(view.latents(0)(0, 0) == Dtype(0.1F));
  CHECK(view.rope_keys(0)(0, 0) == Dtype(-0.3F));
  CHECK(cache.stats().overflowed == (std::is_same_v<Dtype, Eigen::half> ? 2 : 1));
}

TEST_CASE("latent cache: a clone is deep, a move leaves the rows where they are") {
  static_assert(!std::is_copy_constructible_v<LatentCache<float>>);
  LatentCache<float> cache(dims);
  append(cache, Chunk(2));
  cache.update(1, Chunk(1).latents(), Chunk(1).rope_keys());
  LatentCache<float> copy = cache.clone();
  CHECK(copy.seq_len(1) == 3);
  CHECK(RowMatrix(copy.view(1).both(1)) == RowMatrix(cache.view(1).both(1)));
  copy.truncate(0);
  append(copy, Chunk(1, 50));
  CHECK(RowMatrix(cache.view(0).latents(0))(0, 0) == 1);
  const float* data = cache.view(0).both(0).data();
  const LatentCache<float> moved = std::move(cache);
  CHECK(moved.view(0).both(0).data() == data);
}

TEST_CASE("latent cache: garbage behind the fill count is never shown") {
  LatentCache<float> cache(dims);
  Chunk poison(5);
  poison.c.setConstant(std::numeric_limits<float>::quiet_NaN());
  poison.k.setConstant(std::numeric_limits<float>::infinity());
  append(cache, poison);
  cache.truncate(0);
  append(cache, Chunk(2));
  for (Index b = 0; b < 2; ++b) CHECK(RowMatrix(cache.view(1).both(b)).allFinite());
}

TEST_CASE("latent cache: a size that nobody filled in is refused") {
  CHECK_THROWS_AS(LatentCache<float>(LatentDims{.d_latent = 1, .d_rope = 1, .max_len = 1}), std::invalid_argument);
  CHECK_THROWS_AS(LatentCache<float>(LatentDims{.n_layers = 1, .d_rope = 1, .max_len = 1}), std::invalid_argument);
  CHECK_THROWS_AS(LatentCache<float>(LatentDims{.n_layers = 1, .d_latent = 1, .max_len = 1}), std::invalid_argument);
  CHECK_THROWS_AS(LatentCache<float>(LatentDims{.n_layers = 1, .d_latent = 1, .d_rope = 1}), std::invalid_argument);
  CHECK(LatentCache<float>(LatentDims{.n_layers = 1, .d_latent = 1, .d_rope = 1, .max_len = 1}).dims().batch == 1);
}
