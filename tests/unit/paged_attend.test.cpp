// SPDX-License-Identifier: Apache-2.0
#include <tinyllm/attention/attend.hpp>
#include <tinyllm/cache/kv_cache.hpp>
#include <tinyllm/cache/paged_kv_cache.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <random>
#include <vector>

using namespace tinyllm;

namespace {

constexpr Index d = 40;
constexpr Index kv_heads = 2;
constexpr Index group = 3;

RowMatrix random_rows(Index rows, Index cols, std::mt19937& random) {
  std::normal_distribution<float> values;
  RowMatrix m(rows, cols);
  for (Index i = 0; i < m.size(); ++i) m.data()[i] = values(random);
  return m;
}

template <class Dtype>
struct Pair {
  KVCache<Dtype> contiguous{{.n_layers = 1, .n_kv_heads = kv_heads, .d_head = d, .max_len = 700}};
  PagedKVCache<Dtype> paged;

  explicit Pair(const std::shared_ptr<BlockPool<Dtype>>& pool) : paged(pool) {}
  void append(Index tokens, std::mt19937& random) {
    const RowMatrix k = random_rows(tokens, kv_heads * d, random);
    const RowMatrix v = random_rows(tokens, kv_heads * d, random);
    contiguous.update(0, ChunkView::from_projection(k, kv_heads), ChunkView::from_projection(v, kv_heads));
    paged.update(0, ChunkView::from_projection(k, kv_heads), ChunkView::from_projection(v, kv_heads));
  }
};

template <class Dtype>
std::shared_ptr<BlockPool<Dtype>> make_pool(Index block_size) {
  return std::make_shared<BlockPool<Dtype>>(BlockPoolDims{
      .n_layers = 1, .n_kv_heads = kv_heads, .d_head = d, .n_blocks = 3200 / block_size, .block_size = block_size});
}

Index runs_of_first_head(const auto& view) {
  using namespace attention_detail;
  const RowMatrix q = RowMatrix::Zero(1, kv_heads * group * d);
  RowMatrix out = q;
  const AttendShape shape = attend_shape(view, q, out, {});
  const AttendPlan plan(shape, Exactness::rounding, 1);
  AttendWorkspace workspace;
  workspace.prepare(view, plan, shape);
  return workspace.runs_of(0).count;
}

}  // namespace

TEST_CASE_TEMPLATE("attend: a paged cache gives what the contiguous one gives, bit for bit", Dtype, float, Eigen::half,
                   Eigen::bfloat16, std::int8_t) {
  std::mt19937 random(3);
  ThreadPool threads(2);
  for (const Index block_size : {1, 5, 16, 64}) {
    CAPTURE(block_size);
    const auto pool = make_pool<Dtype>(block_size);
    // Others hold every second block, so that no two lie together.
    std::vector<PagedKVCache<Dtype>> others;
    for (Index i = 0; i < pool->dims().n_blocks; ++i) {
      others.emplace_back(pool);
      REQUIRE(others.back().reserve(1));
    }
    for (std::size_t i = 0; i < others.size(); i += 2) others[i].clear();
    Pair<Dtype> a(pool);
    Pair<Dtype> b(pool);
    a.append(300, random);
    for (const Index tokens : {7, 1, 90, 33, 16, 1, 1, 150}) {
      a.append(tokens, random);
      b.append(tokens, random);
    }
    for (const CpuLevel level : cpu_levels) {
      if (!runs(level)) continue;
      for (const Exactness exactness : {Exactness::rounding, Exactness::reproducible}) {
        for (const Index tokens : {1, 2, 9, 70}) {
          CAPTURE(name(level));
          CAPTURE(tokens);
          const RowMatrix q = random_rows(tokens, kv_heads * group * d, random);
          RowMatrix expected(tokens, q.cols());
          RowMatrix out(tokens, q.cols());
          AttendWorkspace workspace;
          for (const std::optional<Index> window : {std::optional<Index>(), std::optional<Index>(100)}) {
            const AttendOptions options{.window = window, .exactness = exactness, .level = level};
            for (const Pair<Dtype>* pair : {&a, &b}) {
              attend(pair->contiguous.view(0), q, expected, workspace, options);
              attend(pair->paged.view(0), q, out, workspace, options);
              CHECK(out == expected);
              attend(pair->contiguous.view(0), q, expected, workspace, options, threads);
              attend(pair->paged.view(0), q, out, workspace, options, threads);
              CHECK(out == expected);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("attend: blocks that lie one behind the other are read as one run") {
  std::mt19937 random(3);
  const auto pool = std::make_shared<BlockPool<Eigen::half>>(
      BlockPoolDims{.n_layers = 1, .n_kv_heads = kv_heads, .d_head = d, .n_blocks = 100});
  Pair<Eigen::half> a(pool);
  a.append(100, random);
  CHECK(a.paged.view(0).n_segments() == 7);
  CHECK(runs_of_first_head(a.paged.view(0)) == 1);
  Pair<Eigen::half> b(pool);
  b.append(20, random);
  a.append(200, random);  // up to b's blocks, and on behind them
  CHECK(a.paged.view(0).n_segments() == 19);
  CHECK(runs_of_first_head(a.paged.view(0)) == 2);
  CHECK(runs_of_first_head(b.paged.view(0)) == 1);
  CHECK(runs_of_first_head(a.contiguous.view(0)) == 1);
}
