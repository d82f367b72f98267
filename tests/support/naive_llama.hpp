// SPDX-License-Identifier: Apache-2.0
// The Llama forward pass as plain loops in double precision, without a cache: the slow version that others must equal.
//
//     const test_support::TinyLlama model;
//     const std::vector<std::vector<double>> logits = test_support::naive_llama(model, {3, 1, 4});   // [T][V]
//
// Errors: none; ids must be in the vocabulary. It shares no code with the engine.
#pragma once

#include "tiny_llama.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace test_support {

namespace naive {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

inline Row apply(const PlainMatrix& matrix, const Row& x) {
  Row y(matrix.rows, 0.0);
  for (std::size_t r = 0; r < matrix.rows; ++r) {
    for (std::size_t c = 0; c < matrix.cols; ++c) y[r] += static_cast<double>(matrix.values[r * matrix.cols + c]) * x[c];
  }
  return y;
}

inline Row rms_norm(const PlainMatrix& weight, const Row& x, double eps) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  Row y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * static_cast<double>(weight.values[i]);
  return y;
}

inline void rotate(const TinyLlamaShape& shape, Row& x, std::size_t heads, std::size_t position) {
  for (std::size_t h = 0; h < heads; ++h) {
    for (std::size_t i = 0; i < shape.rope_dims / 2; ++i) {
      double angle = static_cast<double>(position) / shape.linear_factor *
                     std::pow(shape.theta, -2.0 * static_cast<double>(i) / static_cast<double>(shape.rope_dims));
      if (!shape.rope_factors.empty()) angle /= static_cast<double>(shape.rope_factors[i]);
      double& even = x[h * shape.head_dim + 2 * i];
      double& odd = x[h * shape.head_dim + 2 * i + 1];
      const double turned = even * std::cos(angle) - odd * std::sin(angle);
      odd = even * std::sin(angle) + odd * std::cos(angle);
      even = turned;
    }
  }
}

/// One query's attention over positions [0, t]. Shape: q is [heads · d], the result too
inline Row attend(const TinyLlamaShape& shape, const Row& q, const Rows& keys, const Rows& values, std::size_t t) {
  Row out(q.size(), 0.0);
  for (std::size_t h = 0; h < shape.heads; ++h) {
    const std::size_t from = h / (shape.heads / shape.kv_heads) * shape.head_dim;
    Row weights(t + 1);
    double total = 0;
    for (std::size_t j = 0; j <= t; ++j) {
      double score = 0;
      for (std::size_t c = 0; c < shape.head_dim; ++c) score += q[h * shape.head_dim + c] * keys[j][from + c];
      weights[j] = std::exp(score / std::sqrt(static_cast<double>(shape.head_dim)));
      total += weights[j];
    }
    for (std::size_t j = 0; j <= t; ++j) {
      for (std::size_t c = 0; c < shape.head_dim; ++c) out[h * shape.head_dim + c] += weights[j] / total * values[j][from + c];
    }
  }
  return out;
}

inline void add_to(Row& x, const Row& y) {
  for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

}  // namespace naive

/// Logits of every position. Shape: [T][V]
inline std::vector<std::vector<double>> naive_llama(const TinyLlama& model, const std::vector<std::int32_t>& ids) {
  const TinyLlamaShape& shape = model.shape();
  const double eps = static_cast<double>(shape.eps);
  const PlainMatrix& embedding = model.matrix("token_embd.weight");
  naive::Rows hidden;
  for (const std::int32_t id : ids) {
    const auto begin = embedding.values.begin() + static_cast<std::ptrdiff_t>(id) * static_cast<std::ptrdiff_t>(shape.hidden);
    hidden.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(shape.hidden));
  }
  for (std::size_t layer = 0; layer < shape.layers; ++layer) {
    const auto weight = [&](const std::string& name) -> const PlainMatrix& {
      return model.matrix("blk." + std::to_string(layer) + "." + name + ".weight");
    };
    naive::Rows queries;
    naive::Rows keys;
    naive::Rows values;
    for (std::size_t t = 0; t < ids.size(); ++t) {
      const naive::Row x = naive::rms_norm(weight("attn_norm"), hidden[t], eps);
      queries.push_back(naive::apply(weight("attn_q"), x));
      keys.push_back(naive::apply(weight("attn_k"), x));
      values.push_back(naive::apply(weight("attn_v"), x));
      naive::rotate(shape, queries[t], shape.heads, t);
      naive::rotate(shape, keys[t], shape.kv_heads, t);
    }
    for (std::size_t t = 0; t < ids.size(); ++t) {
      const naive::Row attended = naive::attend(shape, queries[t], keys, values, t);
      naive::add_to(hidden[t], naive::apply(weight("attn_output"), attended));
      const naive::Row x = naive::rms_norm(weight("ffn_norm"), hidden[t], eps);
      naive::Row gate = naive::apply(weight("ffn_gate"), x);
      const naive::Row up = naive::apply(weight("ffn_up"), x);
      for (std::size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
      naive::add_to(hidden[t], naive::apply(weight("ffn_down"), gate));
    }
  }
  std::vector<std::vector<double>> logits;
  for (const naive::Row& x : hidden) {
    logits.push_back(naive::apply(model.matrix(shape.tied ? "token_embd.weight" : "output.weight"),
                                  naive::rms_norm(model.matrix("output_norm.weight"), x, eps)));
  }
  return logits;
}

}  // namespace test_support
