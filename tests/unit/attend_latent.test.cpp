// SPDX-License-Identifier: Apache-2.0
#include <tinyllm/attention/attend_latent.hpp>
#include <tinyllm/cache/latent_cache.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <random>
#include <stdexcept>
#include <vector>

#include <doctest/doctest.h>

using namespace tinyllm;

namespace {

RowMatrix random_rows(Index rows, Index cols, std::mt19937& random) {
  std::normal_distribution<float> values;
  RowMatrix m(rows, cols);
  for (Index i = 0; i < m.size(); ++i) m.data()[i] = values(random);
  return m;
}

template <class Dtype>
LatentCache<Dtype> filled(const LatentDims& dims, Index tokens, std::mt19937& random) {
  LatentCache<Dtype> cache(dims);
  const RowMatrix c = random_rows(dims.batch * tokens, dims.d_latent, random);
  const RowMatrix k = random_rows(dims.batch * tokens, dims.d_rope, random);
  cache.update(0, ChunkView::from_projection(c, 1, dims.batch), ChunkView::from_projection(k, 1, dims.batch));
  return cache;
}

template <class Dtype>
double largest_latent(const LatentView<Dtype>& view) {
  double largest = 0;
  for (Index b = 0; b < view.batch(); ++b) {
    largest = std::max(largest, static_cast<double>(view.latents(b).template cast<float>().cwiseAbs().maxCoeff()));
  }
  return largest;
}

double worst(const RowMatrix& a, const RowMatrix& b) { return static_cast<double>((a - b).cwiseAbs().maxCoeff()); }

}  // namespace

TEST_CASE_TEMPLATE("latent attention: equals the reference, at every level, few heads and many", Dtype, float, Eigen::half,
                   Eigen::bfloat16) {
  std::mt19937 random(5);
  ThreadPool pool(2);
  AttendWorkspace workspace;
  for (const Index d_latent : {8, 64, 96, 100}) {
    for (const Index heads : {1, 3, 16, 70}) {
      for (const Index tokens : {1, 5}) {
        const LatentDims dims{.n_layers = 1, .d_latent = d_latent, .d_rope = 24, .max_len = 700, .batch = 2};
        const LatentCache<Dtype> cache = filled<Dtype>(dims, heads == 70 ? 90 : 620, random);
        const LatentView<Dtype> view = cache.view(0);
        const RowMatrix q = random_rows(2 * tokens, heads * (d_latent + 24), random);
        RowMatrix expected(2 * tokens, heads * d_latent);
        RowMatrix out = expected;
        AttendOptions options{.scale = 0.2F, .window = tokens == 5 ? std::optional<Index>(50) : std::nullopt};
        reference_attention(view, q, expected, options);
        double tolerance = 2e-5;
        for (const CpuLevel level : cpu_levels) {
          if (!runs(level)) continue;
          options.level = level;
          if (std::same_as<Dtype, Eigen::bfloat16> && level == CpuLevel::avx512_bf16 && heads >= 4) {
            // Queries and weights are rounded to bfloat16: weights are off by 1/512 of themselves.
            reference_attention(view, q.cast<Eigen::bfloat16>().template cast<float>().eval(), expected, options);
            tolerance += largest_latent(view) / 512.0;
          }
          for (const Exactness exactness : {Exactness::rounding, Exactness::reproducible}) {
            CAPTURE(name(level));
            CAPTURE(d_latent);
            CAPTURE(heads);
            options.exactness = exactness;
            out.setConstant(7.0F);
            attend(view, q, out, workspace, options);
            CHECK(worst(out, expected) < tolerance);
            out.setConstant(7.0F);
            attend(view, q, out, workspace, options, pool);
            CHECK(worst(out, expected) < tolerance);
          }
        }
      }
    }
  }
}

// With the projections not absorbed, multi-head latent attention is attention with keys [c·W_UK | k_rope] and values c·W_UV.
TEST_CASE("latent attention: absorbed projections give what plain multi-head attention gives") {
  constexpr Index r = 16;
  constexpr Index d_rope = 4;
  constexpr Index d_nope = 6;
  constexpr Index d_v = 5;
  constexpr Index heads = 3;
  constexpr Index rows = 40;
  std::mt19937 random(6);
  const LatentCache<float> cache =
      filled<float>({.n_layers = 1, .d_latent = r, .d_rope = d_rope, .max_len = rows}, rows, random);
  const LatentView<float> view = cache.view(0);
  const float scale = 1.0F / std::sqrt(static_cast<float>(d_nope + d_rope));
  RowMatrix absorbed(1, heads * (r + d_rope));
  RowMatrix plain(1, heads * d_v);
  std::vector<RowMatrix> up_values;
  for (Index h = 0; h < heads; ++h) {
    const RowMatrix up_keys = random_rows(r, d_nope, random);
    const RowMatrix q_nope = random_rows(1, d_nope, random);
    const RowMatrix q_rope = random_rows(1, d_rope, random);
    up_values.push_back(random_rows(r, d_v, random));
    absorbed.middleCols(h * (r + d_rope), r) = q_nope * up_keys.transpose();
    absorbed.middleCols(h * (r + d_rope) + r, d_rope) = q_rope;
    RowMatrix scores = q_nope * (view.latents(0) * up_keys).transpose() + q_rope * view.rope_keys(0).transpose();
    scores = (scores * scale).array().exp();
    plain.middleCols(h * d_v, d_v) = scores / scores.sum() * (view.latents(0) * up_values.back());
  }
  AttendWorkspace workspace;
  RowMatrix out(1, heads * r);
  attend(view, absorbed, out, workspace, {.scale = scale});
  for (Index h = 0; h < heads; ++h) {
    const RowMatrix mine = out.middleCols(h * r, r) * up_values[static_cast<std::size_t>(h)];
    CHECK(worst(mine, plain.middleCols(h * d_v, d_v)) < 1e-4);
  }
}

TEST_CASE("latent attention: shapes that do not fit and a missing scale are refused") {
  std::mt19937 random(7);
  const LatentCache<float> cache = filled<float>({.n_layers = 1, .d_latent = 8, .d_rope = 4, .max_len = 5}, 5, random);
  AttendWorkspace workspace;
  RowMatrix out(1, 16);
  const RowMatrix q = RowMatrix::Zero(1, 24);
  CHECK_NOTHROW(attend(cache.view(0), q, out, workspace, {.scale = 1.0F}));
  CHECK_THROWS_AS(attend(cache.view(0), q, out, workspace, AttendOptions{}), std::invalid_argument);
  RowMatrix wrong(1, 24);
  CHECK_THROWS_AS(attend(cache.view(0), q, wrong, workspace, {.scale = 1.0F}), std::invalid_argument);
  CHECK_THROWS_AS(attend(cache.view(0), RowMatrix::Zero(1, 16).eval(), out, workspace, {.scale = 1.0F}), std::invalid_argument);
}
