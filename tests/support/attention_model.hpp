// SPDX-License-Identifier: Apache-2.0
// AttentionModel: a small multi-layer model with grouped-query attention and rotary positions, in plain loops, so that a
// wrong position, mask, row or layer changes its logits. `forward_full` is the same model without any cache.
#pragma once

#include <tinyllm/cache/chunk_view.hpp>
#include <tinyllm/core/types.hpp>

#include <cmath>
#include <random>
#include <span>
#include <vector>

namespace test_support {

using tinyllm::ChunkView;
using tinyllm::Index;
using tinyllm::Positions;
using tinyllm::RowMatrix;
using tinyllm::TokenId;

class AttentionModel {
 public:
  struct Config {
    Index num_hidden_layers = 3;
    Index num_attention_heads = 4;
    Index num_key_value_heads = 2;
    Index head_dim = 8;
    Index hidden_size = 24;
    Index vocab_size = 61;
    Index max_position_embeddings = 64;
  };

  explicit AttentionModel(unsigned seed = 1) : AttentionModel(Config{}, seed) {}
  AttentionModel(const Config& sizes, unsigned seed) : config(sizes) {
    std::mt19937 random(seed);
    const Index q_size = config.num_attention_heads * config.head_dim;
    const Index kv_size = config.num_key_value_heads * config.head_dim;
    embedding_ = random_matrix(random, config.vocab_size, config.hidden_size, 1.0F);
    for (Index layer = 0; layer < config.num_hidden_layers; ++layer) {
      layers_.push_back(
          {random_matrix(random, config.hidden_size, q_size, 0.6F), random_matrix(random, config.hidden_size, kv_size, 0.6F),
           random_matrix(random, config.hidden_size, kv_size, 0.6F), random_matrix(random, q_size, config.hidden_size, 0.5F)});
    }
    head_ = random_matrix(random, config.hidden_size, config.vocab_size, 0.7F);
  }

  Config config;

  /// Shape: [T, V]
  RowMatrix forward(std::span<const TokenId> ids, Positions positions, auto& cache) const {
    const Index past = cache.seq_len();
    RowMatrix x = embed(ids);
    for (Index layer = 0; layer < config.num_hidden_layers; ++layer) {
      const Weights& w = layers_[static_cast<std::size_t>(layer)];
      const RowMatrix h = normalised(x);
      const RowMatrix q = rotated(times(h, w.q), positions.first());
      const RowMatrix k = rotated(times(h, w.k), positions.first());
      const RowMatrix v = times(h, w.v);
      const auto view = cache.update(layer, ChunkView::from_projection(k, config.num_key_value_heads),
                                     ChunkView::from_projection(v, config.num_key_value_heads));
      const auto row = [&](bool keys, Index head, Index position, Index i) {
        for (Index s = 0;; ++s) {
          const auto segment = view.segment(0, head, s);
          if (position < segment.rows) {
            return static_cast<float>((keys ? segment.keys : segment.values)[position * config.head_dim + i]);
          }
          position -= segment.rows;
        }
      };
      // Query i of the pass sees the past and the chunk up to itself.
      x += times(attention(q, row, [past](Index i) { return past + i + 1; }), w.o);
    }
    return times(normalised(x), head_);
  }

  /// The same from scratch, for a whole sequence.
  /// Shape: [T, V]
  RowMatrix forward_full(std::span<const TokenId> ids) const {
    RowMatrix x = embed(ids);
    for (const Weights& w : layers_) {
      const RowMatrix h = normalised(x);
      const RowMatrix q = rotated(times(h, w.q), 0);
      const RowMatrix k = rotated(times(h, w.k), 0);
      const RowMatrix v = times(h, w.v);
      const auto row = [&](bool keys, Index head, Index position, Index i) {
        return (keys ? k : v)(position, head * config.head_dim + i);
      };
      x += times(attention(q, row, [](Index i) { return i + 1; }), w.o);
    }
    return times(normalised(x), head_);
  }

 private:
  struct Weights {
    RowMatrix q, k, v, o;
  };

  static RowMatrix random_matrix(std::mt19937& random, Index rows, Index cols, float scale) {
    RowMatrix m(rows, cols);
    for (Index i = 0; i < m.size(); ++i) {
      m.data()[i] = scale * (static_cast<float>(random() >> 8) / static_cast<float>(1 << 23) - 1.0F);
    }
    return m;
  }

  // Row by row, so that a row's result does not depend on the rows beside it.
  static RowMatrix times(const RowMatrix& x, const RowMatrix& w) {
    RowMatrix y(x.rows(), w.cols());
    for (Index t = 0; t < x.rows(); ++t) y.row(t).noalias() = x.row(t) * w;
    return y;
  }

  RowMatrix embed(std::span<const TokenId> ids) const {
    RowMatrix x(static_cast<Index>(ids.size()), config.hidden_size);
    for (std::size_t t = 0; t < ids.size(); ++t) x.row(static_cast<Index>(t)) = embedding_.row(ids[t]);
    return x;
  }

  static RowMatrix normalised(RowMatrix x) {
    for (Index t = 0; t < x.rows(); ++t) x.row(t) /= std::sqrt(x.row(t).squaredNorm() / static_cast<float>(x.cols()) + 1e-5F);
    return x;
  }

  RowMatrix rotated(RowMatrix x, Index first) const {
    for (Index t = 0; t < x.rows(); ++t) {
      for (Index i = 0; i < x.cols(); i += 2) {
        const double exponent = static_cast<double>(i % config.head_dim) / static_cast<double>(config.head_dim);
        const double angle = static_cast<double>(first + t) * std::pow(100.0, -exponent);
        const auto c = static_cast<float>(std::cos(angle));
        const auto s = static_cast<float>(std::sin(angle));
        const float a = x(t, i);
        const float b = x(t, i + 1);
        x(t, i) = a * c - b * s;
        x(t, i + 1) = a * s + b * c;
      }
    }
    return x;
  }

  // softmax(q·kᵀ/√d)·v with `visible(i)` keys for query i; `row(keys, kv head, position, i)` reads one stored element.
  template <class Row, class Visible>
  RowMatrix attention(const RowMatrix& q, const Row& row, const Visible& visible) const {
    const Index d = config.head_dim;
    const Index group = config.num_attention_heads / config.num_key_value_heads;
    RowMatrix out = RowMatrix::Zero(q.rows(), q.cols());
    for (Index head = 0; head < config.num_attention_heads; ++head) {
      for (Index t = 0; t < q.rows(); ++t) {
        std::vector<double> weights;
        double highest = -1e300;
        for (Index j = 0; j < visible(t); ++j) {
          double score = 0;
          for (Index i = 0; i < d; ++i) {
            score += static_cast<double>(q(t, head * d + i)) * static_cast<double>(row(true, head / group, j, i));
          }
          weights.push_back(score / std::sqrt(static_cast<double>(d)));
          highest = std::max(highest, weights.back());
        }
        double sum = 0;
        for (double& w : weights) sum += w = std::exp(w - highest);
        for (Index i = 0; i < d; ++i) {
          double value = 0;
          for (Index j = 0; j < visible(t); ++j) {
            value += weights[static_cast<std::size_t>(j)] * static_cast<double>(row(false, head / group, j, i));
          }
          out(t, head * d + i) = static_cast<float>(value / sum);
        }
      }
    }
    return out;
  }

  RowMatrix embedding_;
  std::vector<Weights> layers_;
  RowMatrix head_;
};

}  // namespace test_support
