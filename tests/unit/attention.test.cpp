// SPDX-License-Identifier: Apache-2.0
#include "attention.hpp"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include <doctest/doctest.h>

using engine::Attention;
using engine::Index;
using engine::RowMatrix;

namespace {

// Keys and values of one sequence cut into segments of `segment_rows`, with garbage behind the last row of each.
template <class Dtype>
class SegmentedView {
 public:
  SegmentedView(Index n_heads, Index rows, Index d, Index segment_rows, float scale = 1)
      : n_heads_(n_heads), rows_(rows), d_(d), segment_rows_(segment_rows) {
    std::mt19937 random(5);
    std::normal_distribution<float> values(0, scale);
    const Index padded = n_segments() * (segment_rows + 1) * d;
    const Dtype garbage(std::numeric_limits<float>::quiet_NaN());
    keys_.assign(static_cast<std::size_t>(n_heads * padded), garbage);
    values_ = keys_;
    for (Index h = 0; h < n_heads; ++h) {
      for (Index row = 0; row < rows; ++row) {
        for (Index c = 0; c < d; ++c) {
          keys_[at(h, row, c)] = Dtype(values(random));
          values_[at(h, row, c)] = Dtype(values(random) + 1);
        }
      }
    }
  }

  Index rows() const { return rows_; }
  Index batch() const { return 1; }
  Index n_heads() const { return n_heads_; }
  Index d_head() const { return d_; }
  Index n_segments() const { return (rows_ + segment_rows_ - 1) / segment_rows_; }
  tinyllm::KVSegment<Dtype> segment(Index, Index h, Index i) const {
    const std::size_t first = at(h, i * segment_rows_, 0);
    return {keys_.data() + first, values_.data() + first, std::min(segment_rows_, rows_ - i * segment_rows_)};
  }

  double key(Index h, Index row, Index c) const { return static_cast<double>(static_cast<float>(keys_[at(h, row, c)])); }
  double value(Index h, Index row, Index c) const { return static_cast<double>(static_cast<float>(values_[at(h, row, c)])); }

 private:
  std::size_t at(Index h, Index row, Index c) const {
    const Index segment = row / segment_rows_;
    return static_cast<std::size_t>(((h * n_segments() + segment) * (segment_rows_ + 1) + row % segment_rows_) * d_ + c);
  }

  Index n_heads_;
  Index rows_;
  Index d_;
  Index segment_rows_;
  std::vector<Dtype> keys_;
  std::vector<Dtype> values_;
};

RowMatrix random_queries(Index rows, Index cols, float scale) {
  std::mt19937 random(9);
  std::normal_distribution<float> values(0, scale);
  RowMatrix q(rows, cols);
  for (Index i = 0; i < q.size(); ++i) q.data()[i] = values(random);
  return q;
}

template <class Dtype>
double worst_error(const SegmentedView<Dtype>& view, const RowMatrix& q, Index n_heads, const RowMatrix& out) {
  const Index d = view.d_head();
  double worst = 0;
  for (Index t = 0; t < q.rows(); ++t) {
    for (Index head = 0; head < n_heads; ++head) {
      const Index h = head / (n_heads / view.n_heads());
      std::vector<double> scores;
      double maximum = -1e300;
      for (Index j = 0; j <= view.rows() - q.rows() + t; ++j) {
        double score = 0;
        for (Index c = 0; c < d; ++c) score += static_cast<double>(q(t, head * d + c)) * view.key(h, j, c);
        scores.push_back(score / std::sqrt(static_cast<double>(d)));
        maximum = std::max(maximum, scores.back());
      }
      double total = 0;
      for (double& score : scores) total += score = std::exp(score - maximum);
      for (Index c = 0; c < d; ++c) {
        double expected = 0;
        for (std::size_t j = 0; j < scores.size(); ++j) expected += scores[j] / total * view.value(h, static_cast<Index>(j), c);
        const double error = std::abs(expected - static_cast<double>(out(t, head * d + c)));
        worst = std::isfinite(error) ? std::max(worst, error) : 1e30;
      }
    }
  }
  return worst;
}

template <class Dtype>
void check_attention(const engine::Kernels& kernels, float scale) {
  struct Shape {
    Index heads;
    Index kv_heads;
    Index d;
  };
  tinyllm::ThreadPool pool(2);
  for (const Shape& shape : {Shape{9, 3, 64}, Shape{5, 1, 12}, Shape{2, 2, 20}}) {
    Attention attention(pool, {shape.heads, shape.kv_heads, shape.d}, kernels);
    RowMatrix out;
    for (const Index rows : {1, 2, 65, 150, 1100}) {
      for (const Index segment_rows : {16, 1000}) {
        const SegmentedView<Dtype> view(shape.kv_heads, rows, shape.d, segment_rows, scale);
        for (const Index tokens : {1, 2, 7, 65}) {
          if (tokens > rows || (rows > 1000 && tokens > 1)) continue;  // a long past is cut into parts for one token only
          CAPTURE(shape.heads);
          CAPTURE(rows);
          CAPTURE(segment_rows);
          CAPTURE(tokens);
          const RowMatrix q = random_queries(tokens, shape.heads * shape.d, scale);
          attention.attend(view, q, out);
          REQUIRE(out.rows() == tokens);
          CHECK(worst_error(view, q, shape.heads, out) < 2e-5 * static_cast<double>(scale * scale * scale));
        }
      }
    }
  }
}

std::vector<const engine::Kernels*> every_kernel() {
  std::vector<const engine::Kernels*> tables{&engine::portable_kernels()};
  if (engine::avx2_kernels() != nullptr) tables.push_back(engine::avx2_kernels());
  return tables;
}

}  // namespace

TEST_CASE("attention_equals_plain_softmax_over_any_segments") {
  for (const engine::Kernels* kernels : every_kernel()) {
    CAPTURE(kernels->name);
    check_attention<float>(*kernels, 1);
    check_attention<Eigen::half>(*kernels, 1);
    check_attention<Eigen::bfloat16>(*kernels, 1);
    check_attention<float>(*kernels, 6);  // nearly one-hot, with scores of hundreds
  }
}

TEST_CASE("attention_logits_far_below_zero_are_still_a_softmax") {
  tinyllm::ThreadPool pool(1);
  Attention attention(pool, {1, 1, 1});
  std::vector<float> keys(3, -1e5F);
  const std::vector<float> values{1.0F, 2.0F, 6.0F};
  const tinyllm::KVView<float> view(keys.data(), values.data(), 3,
                                    {.batch = 1, .n_heads = 1, .d_head = 1, .batch_stride = 3, .head_stride = 3});
  RowMatrix out;
  attention.attend(view, RowMatrix::Ones(1, 1), out);
  CHECK(out(0, 0) == doctest::Approx(3.0));
  attention.attend(view, RowMatrix::Ones(2, 1), out);
  CHECK(out(0, 0) == doctest::Approx(1.5));
  CHECK(out(1, 0) == doctest::Approx(3.0));
}

TEST_CASE("attention_refuses_shapes_that_do_not_fit") {
  tinyllm::ThreadPool pool(1);
  CHECK_THROWS_AS(Attention(pool, {5, 2, 8}), std::invalid_argument);
  Attention attention(pool, {4, 2, 8});
  const SegmentedView<float> view(2, 3, 8, 16);
  const SegmentedView<float> other_heads(1, 3, 8, 16);
  RowMatrix out;
  CHECK_THROWS_AS(attention.attend(view, RowMatrix::Zero(4, 32), out), std::invalid_argument);  // more queries than keys
  CHECK_THROWS_AS(attention.attend(view, RowMatrix::Zero(1, 31), out), std::invalid_argument);
  CHECK_THROWS_AS(attention.attend(other_heads, RowMatrix::Zero(1, 32), out), std::invalid_argument);
}
