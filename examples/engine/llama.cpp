// SPDX-License-Identifier: Apache-2.0
#include "llama.hpp"

#include "quants.hpp"

#include <tinyllm/core/error.hpp>

#include <cmath>
#include <string>
#include <utility>

namespace engine {
namespace {

using tinyllm::Positions;
using tinyllm::TokenId;
using tinyllm::detail::message;

// The feed-forward block widens activations several times, so long prompts go through it this many rows at a time.
constexpr Index mlp_rows = 512;

// Rows of elementwise work that one task takes.
constexpr Index rows_per_task = 16;

}  // namespace

Llama::Llama(std::shared_ptr<const Gguf> gguf, tinyllm::ThreadPool& pool, const Kernels& kernels)
    : gguf_(std::move(gguf)),
      pool_(pool),
      kernels_(kernels),
      config_(read_llama_config(*gguf_)),
      frequencies_(rope_frequencies(config_, *gguf_)),
      embedding_(load_matrix("token_embd.weight", config_.vocab_size, config_.hidden_size)),
      head_(gguf_->find("output.weight") == nullptr ? embedding_
                                                    : load_matrix("output.weight", config_.vocab_size, config_.hidden_size)),
      final_norm_(load_norm("output_norm.weight")),
      matmul_(pool, kernels),
      attention_(pool, {config_.num_attention_heads, config_.num_key_value_heads, config_.head_dim}, kernels) {
  for (Index layer = 0; layer < config_.num_hidden_layers; ++layer) layers_.push_back(load_layer(layer));
}

Llama::Layer Llama::load_layer(Index layer) const {
  const std::string prefix = "blk." + std::to_string(layer) + ".";
  const Index hidden = config_.hidden_size;
  const Index inner = config_.intermediate_size;
  const Index queries = config_.num_attention_heads * config_.head_dim;
  const Index keys = config_.num_key_value_heads * config_.head_dim;
  return {load_norm(prefix + "attn_norm.weight"),
          load_matrix(prefix + "attn_q.weight", queries, hidden),
          load_matrix(prefix + "attn_k.weight", keys, hidden),
          load_matrix(prefix + "attn_v.weight", keys, hidden),
          load_matrix(prefix + "attn_output.weight", hidden, queries),
          load_norm(prefix + "ffn_norm.weight"),
          load_matrix(prefix + "ffn_gate.weight", inner, hidden),
          load_matrix(prefix + "ffn_up.weight", inner, hidden),
          load_matrix(prefix + "ffn_down.weight", hidden, inner)};
}

std::vector<float> Llama::load_norm(const std::string& name) const {
  const Tensor& tensor = tensor_of_shape(*gguf_, name, 1, config_.hidden_size);
  std::vector<float> weight(static_cast<std::size_t>(config_.hidden_size));
  dequantize_row(tensor.type, tensor.data.data(), weight);
  return weight;
}

WeightMatrix Llama::load_matrix(const std::string& name, Index rows, Index cols) const {
  return WeightMatrix(tensor_of_shape(*gguf_, name, rows, cols));
}

template <class F>
void Llama::for_each_row(Index n, F f) const {
  pool_.run((n + rows_per_task - 1) / rows_per_task, [&](Index task) {
    const Index end = std::min(n, (task + 1) * rows_per_task);
    for (Index row = task * rows_per_task; row < end; ++row) f(row);
  });
}

void Llama::begin(std::span<const TokenId> ids, Positions positions) {
  const auto n = static_cast<Index>(ids.size());
  if (n == 0) throw std::invalid_argument("forward: there are no ids");
  if (positions.size() != n) throw std::invalid_argument(message("forward: ", n, " ids but ", positions.size(), " positions"));
  if (positions.first() < 0 || positions.first() > config_.max_position_embeddings - n) {
    throw std::out_of_range(message("forward: positions ", positions.first(), " to ", positions.first() + n - 1,
                                    " are not all in the model's context of ", config_.max_position_embeddings));
  }
  for (const TokenId id : ids) {
    if (id < 0 || id >= config_.vocab_size) {
      throw std::out_of_range(message("forward: id ", id, " is not in the vocabulary of ", config_.vocab_size));
    }
  }
  hidden_.resize(n, config_.hidden_size);
  const Index pairs = config_.rope_dims / 2;
  cosines_.resize(n, pairs);
  sines_.resize(n, pairs);
  for_each_row(n, [&](Index row) {
    embedding_.unpack_row(ids[static_cast<std::size_t>(row)],
                          {hidden_.data() + row * hidden_.cols(), static_cast<std::size_t>(hidden_.cols())});
    for (Index i = 0; i < pairs; ++i) {
      // In double: a float angle of thousands of radians would be off by 1e-4.
      const double angle = static_cast<double>(positions[row]) * frequencies_[static_cast<std::size_t>(i)];
      cosines_(row, i) = static_cast<float>(std::cos(angle));
      sines_(row, i) = static_cast<float>(std::sin(angle));
    }
  });
}

void Llama::project(Index layer) {
  const Layer& weights = layers_[static_cast<std::size_t>(layer)];
  normalize(0, tokens(), weights.attention_norm);
  const Product products[] = {{&weights.q, &q_}, {&weights.k, &k_}, {&weights.v, &v_}};
  matmul_.multiply(normalized_, products);
  rotate(q_, config_.num_attention_heads);
  rotate(k_, config_.num_key_value_heads);
}

void Llama::finish(Index layer) {
  const Layer& weights = layers_[static_cast<std::size_t>(layer)];
  matmul_.multiply(attended_, weights.attention_out, update_);
  hidden_ += update_;
  for (Index first = 0; first < tokens(); first += mlp_rows) {
    const Index n = std::min(mlp_rows, tokens() - first);
    normalize(first, n, weights.mlp_norm);
    const Product products[] = {{&weights.gate, &gate_}, {&weights.up, &up_}};
    matmul_.multiply(normalized_, products);
    for_each_row(n, [&](Index row) {
      kernels_.silu_multiply(gate_.data() + row * gate_.cols(), up_.data() + row * up_.cols(), gate_.cols());
    });
    matmul_.multiply(gate_, weights.down, update_);
    hidden_.middleRows(first, n) += update_;
  }
}

const RowMatrix& Llama::logits_of(Index first, Index n) {
  normalize(first, n, final_norm_);
  matmul_.multiply(normalized_, head_, logits_);
  return logits_;
}

// normalized_ = rows [first, first + n) of hidden_, divided by their root mean square, times the weights.
void Llama::normalize(Index first, Index n, const std::vector<float>& weight) {
  normalized_.resize(n, hidden_.cols());
  const Eigen::Map<const Eigen::RowVectorXf> weights(weight.data(), hidden_.cols());
  for_each_row(n, [&](Index row) {
    const auto x = hidden_.row(first + row);
    const float mean_square = x.squaredNorm() / static_cast<float>(hidden_.cols());
    normalized_.row(row) = x.cwiseProduct(weights) / std::sqrt(mean_square + config_.rms_norm_eps);
  });
}

// Turns the pairs (2i, 2i + 1) at the front of each head by the token's angles.
void Llama::rotate(RowMatrix& x, Index n_heads) const {
  const Index pairs = cosines_.cols();
  for_each_row(x.rows(), [&](Index row) {
    const float* cosine = cosines_.data() + row * pairs;
    const float* sine = sines_.data() + row * pairs;
    for (Index h = 0; h < n_heads; ++h) {
      float* head = x.data() + row * x.cols() + h * config_.head_dim;
      for (Index i = 0; i < pairs; ++i) {
        const float even = head[2 * i];
        const float odd = head[2 * i + 1];
        head[2 * i] = even * cosine[i] - odd * sine[i];
        head[2 * i + 1] = even * sine[i] + odd * cosine[i];
      }
    }
  });
}

}  // namespace engine
