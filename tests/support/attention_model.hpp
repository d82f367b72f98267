// SPDX-License-Identifier: Apache-2.0
// AttentionModel: a small multi-layer model with grouped-query attention and rotary positions, in plain loops, so that a
// wrong position, mask, row or layer changes its logits. `forward_full` is the same model without any cache, `forward_batch`
// for many sequences at once.
#pragma once

#include <tinyllm/batching/batch_causal_lm.hpp>
#include <tinyllm/cache/chunk_view.hpp>
#include <tinyllm/core/types.hpp>

#include <cmath>
#include <numeric>
#include <random>
#include <span>
#include <type_traits>
#include <vector>

namespace test_support {

using tinyllm::BatchEntry;
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
    using Cache = std::remove_reference_t<decltype(cache)>;
    const BatchEntry<Cache> whole{.ids = ids, .positions = positions, .cache = &cache, .n_logits = positions.size()};
    return forward_batch(std::span(&whole, 1));
  }

  /// The same for many sequences at once; a row's logits do not depend on the rows beside it.
  /// Shape: [sum of n_logits, V]
  template <class Cache>
  RowMatrix forward_batch(std::span<const BatchEntry<Cache>> batch) const {
    std::vector<TokenId> ids;
    std::vector<Index> positions;
    std::vector<Index> past;
    Index n_logits = 0;
    for (const auto& entry : batch) {
      ids.insert(ids.end(), entry.ids.begin(), entry.ids.end());
      for (const Index position : entry.positions) positions.push_back(position);
      past.push_back(entry.cache->seq_len());
      n_logits += entry.n_logits;
    }
    RowMatrix x = embed(ids);
    for (Index layer = 0; layer < config.num_hidden_layers; ++layer) {
      const Weights& w = layers_[static_cast<std::size_t>(layer)];
      const RowMatrix h = normalised(x);
      const RowMatrix q = rotated(times(h, w.q), positions);
      const RowMatrix k = rotated(times(h, w.k), positions);
      const RowMatrix v = times(h, w.v);
      RowMatrix attended(x.rows(), q.cols());
      Index first = 0;
      for (std::size_t i = 0; i < batch.size(); ++i) {
        const Index n = batch[i].positions.size();
        const auto view =
            batch[i].cache->update(layer, ChunkView::from_projection(k.middleRows(first, n), config.num_key_value_heads),
                                   ChunkView::from_projection(v.middleRows(first, n), config.num_key_value_heads));
        const auto rows = rows_of(view);
        const auto row = [&](bool keys, Index head, Index position, Index c) {
          const auto& stored = rows[static_cast<std::size_t>(head * view.rows() + position)];
          return keys ? stored.key_scale * static_cast<float>(stored.key[c])
                      : stored.value_scale * static_cast<float>(stored.value[c]);
        };
        // Query t of the pass sees the past and the chunk up to itself.
        const Index before = past[i];
        attended.middleRows(first, n) = attention(q.middleRows(first, n), row, [before](Index t) { return before + t + 1; });
        first += n;
      }
      x += times(attended, w.o);
    }
    RowMatrix wanted(n_logits, x.cols());
    Index end = 0;
    Index out = 0;
    for (const auto& entry : batch) {
      end += entry.positions.size();
      wanted.middleRows(out, entry.n_logits) = x.middleRows(end - entry.n_logits, entry.n_logits);
      out += entry.n_logits;
    }
    return times(normalised(wanted), head_);
  }

  /// The same from scratch, for a whole sequence.
  /// Shape: [T, V]
  RowMatrix forward_full(std::span<const TokenId> ids) const {
    RowMatrix x = embed(ids);
    std::vector<Index> positions(ids.size());
    std::iota(positions.begin(), positions.end(), Index{0});
    for (const Weights& w : layers_) {
      const RowMatrix h = normalised(x);
      const RowMatrix q = rotated(times(h, w.q), positions);
      const RowMatrix k = rotated(times(h, w.k), positions);
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

  RowMatrix rotated(RowMatrix x, const std::vector<Index>& positions) const {
    for (Index t = 0; t < x.rows(); ++t) {
      for (Index i = 0; i < x.cols(); i += 2) {
        const double exponent = static_cast<double>(i % config.head_dim) / static_cast<double>(config.head_dim);
        const double angle = static_cast<double>(positions[static_cast<std::size_t>(t)]) * std::pow(100.0, -exponent);
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

  // Where each position's key and value lie, head after head.
  template <class View>
  static auto rows_of(const View& view) {
    using Pointer = decltype(view.segment(0, 0, 0).keys);
    struct Row {
      Pointer key;
      Pointer value;
      float key_scale = 1;
      float value_scale = 1;
    };
    std::vector<Row> rows;
    for (Index head = 0; head < view.n_heads(); ++head) {
      for (Index i = 0; i < view.n_segments(); ++i) {
        const auto segment = view.segment(0, head, i);
        for (Index r = 0; r < segment.rows; ++r) {
          rows.push_back({.key = segment.keys + r * view.d_head(), .value = segment.values + r * view.d_head()});
          if (segment.key_scales == nullptr) continue;
          rows.back().key_scale = segment.key_scales[r];
          rows.back().value_scale = segment.value_scales[r];
        }
      }
    }
    return rows;
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
