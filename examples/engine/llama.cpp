// SPDX-License-Identifier: Apache-2.0
#include "llama.hpp"

#include "quants.hpp"

#include <tinyllm/core/error.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
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

// Bytes of panels that one task packs.
constexpr std::size_t bytes_per_task = std::size_t{1} << 18;

// Gives each matrix of a model its place in one memory, and packs them all in parallel.
class MatrixLoader {
 public:
  explicit MatrixLoader(const Gguf& gguf) : gguf_(gguf) {}

  // `matrix` is filled by load().
  void add(WeightMatrix& matrix, const std::string& name, Index rows, Index cols) {
    const Tensor& tensor = tensor_of_shape(gguf_, name, rows, cols);
    entries_.push_back({&matrix, &tensor, size_});
    size_ += WeightMatrix::memory_bytes(tensor);
  }

  std::unique_ptr<PanelMemory> load(tinyllm::ThreadPool& pool) {
    auto memory = std::make_unique<PanelMemory>(size_);
    std::vector<Part> parts;
    for (const Entry& entry : entries_) {
      *entry.matrix = WeightMatrix(*entry.tensor, memory->data() + entry.at);
      const auto panel_bytes = entry.matrix->panels(0, 1).panel_bytes;
      const auto step = static_cast<Index>(std::max<std::size_t>(bytes_per_task / panel_bytes, 1));
      const Index n_panels = entry.matrix->n_panels();
      for (Index first = 0; first < n_panels; first += step) parts.push_back({&entry, first, std::min(step, n_panels - first)});
    }
    pool.run(static_cast<Index>(parts.size()), [&](Index i) { pack(parts[static_cast<std::size_t>(i)]); });
    return memory;
  }

 private:
  struct Entry {
    WeightMatrix* matrix;
    const Tensor* tensor;
    std::size_t at;
  };
  struct Part {
    const Entry* entry;
    Index first;
    Index n;
  };

  void pack(const Part& part) const {
    const Tensor& tensor = *part.entry->tensor;
    part.entry->matrix->pack(tensor, part.first, part.n);
    const auto begin = static_cast<std::size_t>(part.first * panel_rows);
    const auto end = static_cast<std::size_t>(std::min<Index>(tensor.rows, (part.first + part.n) * panel_rows));
    gguf_.advise_dont_need(tensor.data.subspan(begin * tensor.row_bytes(), (end - begin) * tensor.row_bytes()));
  }

  const Gguf& gguf_;
  std::vector<Entry> entries_;
  std::size_t size_ = 0;
};

}  // namespace

Llama::Llama(std::shared_ptr<const Gguf> gguf, tinyllm::ThreadPool& pool, const LlamaOptions& options)
    : gguf_(std::move(gguf)),
      pool_(pool),
      kernels_(options.kernels),
      exactness_(options.exactness),
      config_(read_llama_config(*gguf_)),
      frequencies_(rope_frequencies(config_, *gguf_)),
      final_norm_(load_norm("output_norm.weight")),
      matmul_(pool, options.activations, options.kernels),
      workspaces_(static_cast<std::size_t>(pool.concurrency())) {
  load_layers();
}

void Llama::load_layers() {
  const Index hidden = config_.hidden_size;
  const Index inner = config_.intermediate_size;
  const Index queries = config_.num_attention_heads * config_.head_dim;
  const Index keys = config_.num_key_value_heads * config_.head_dim;
  layers_.resize(static_cast<std::size_t>(config_.num_hidden_layers));
  MatrixLoader loader(*gguf_);
  Index number = 0;
  for (Layer& layer : layers_) {
    const std::string prefix = "blk." + std::to_string(number++) + ".";
    layer.attention_norm = load_norm(prefix + "attn_norm.weight");
    layer.mlp_norm = load_norm(prefix + "ffn_norm.weight");
    loader.add(layer.q, prefix + "attn_q.weight", queries, hidden);
    loader.add(layer.k, prefix + "attn_k.weight", keys, hidden);
    loader.add(layer.v, prefix + "attn_v.weight", keys, hidden);
    loader.add(layer.attention_out, prefix + "attn_output.weight", hidden, queries);
    loader.add(layer.gate, prefix + "ffn_gate.weight", inner, hidden);
    loader.add(layer.up, prefix + "ffn_up.weight", inner, hidden);
    loader.add(layer.down, prefix + "ffn_down.weight", hidden, inner);
  }
  loader.add(embedding_, "token_embd.weight", config_.vocab_size, hidden);
  const bool tied = gguf_->find("output.weight") == nullptr;
  if (!tied) loader.add(head_, "output.weight", config_.vocab_size, hidden);
  memory_ = loader.load(pool_);
  if (tied) head_ = embedding_;
}

std::vector<float> Llama::load_norm(const std::string& name) const {
  const Tensor& tensor = tensor_of_shape(*gguf_, name, 1, config_.hidden_size);
  std::vector<float> weight(static_cast<std::size_t>(config_.hidden_size));
  dequantize_row(tensor.type, tensor.data.data(), weight);
  return weight;
}

template <class F>
void Llama::for_each_row(Index n, F f) const {
  pool_.run((n + rows_per_task - 1) / rows_per_task, [&](Index task) {
    const Index end = std::min(n, (task + 1) * rows_per_task);
    for (Index row = task * rows_per_task; row < end; ++row) f(row);
  });
}

// Makes room for a pass of n tokens.
void Llama::begin(Index n) {
  hidden_.resize(n, config_.hidden_size);
  attended_.resize(n, config_.num_attention_heads * config_.head_dim);
  cosines_.resize(n, config_.rope_dims);
  sines_.resize(n, config_.rope_dims);
}

// One sequence's tokens become the rows of the pass from `first` on.
void Llama::embed(std::span<const TokenId> ids, Positions positions, Index first) {
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
  for_each_row(n, [&](Index token) {
    const Index row = first + token;
    embedding_.unpack_row(ids[static_cast<std::size_t>(token)],
                          {hidden_.data() + row * hidden_.cols(), static_cast<std::size_t>(hidden_.cols())});
    for (Index i = 0; i < config_.rope_dims; i += 2) {
      // In double: a float angle of thousands of radians would be off by 1e-4.
      const double angle = static_cast<double>(positions[token]) * frequencies_[static_cast<std::size_t>(i / 2)];
      const auto cosine = static_cast<float>(std::cos(angle));
      const auto sine = static_cast<float>(std::sin(angle));
      cosines_(row, i) = cosine;
      cosines_(row, i + 1) = cosine;
      sines_(row, i) = -sine;
      sines_(row, i + 1) = sine;
    }
  });
}

// The next rows of the pass are these tokens.
void Llama::add_part(std::span<const TokenId> ids, Positions positions, Index n_logits) {
  const Index first = parts_.empty() ? 0 : parts_.back().first + parts_.back().n;
  const auto n = static_cast<Index>(ids.size());
  if (n_logits < 0 || n_logits > n) {
    throw std::invalid_argument(message("forward: logits of ", n_logits, " tokens are wanted of ", n));
  }
  embed(ids, positions, first);
  parts_.push_back({.first = first, .n = n, .n_logits = n_logits, .work = n * (positions.first() + n), .all_threads = false});
}

// A part that would keep one thread busy for long after the others have ended is for all of them.
void Llama::share_out(bool reserved) {
  Index total = 0;
  for (const Part& part : parts_) total += part.work;
  n_alone_ = 0;
  for (Part& part : parts_) {
    part.all_threads = !reserved || part.work > total / pool_.concurrency() * 3 / 2;
    if (!part.all_threads) ++n_alone_;
  }
}

void Llama::project(Index layer) {
  const Layer& weights = layers_[static_cast<std::size_t>(layer)];
  normalize(0, tokens(), weights.attention_norm);
  const Product products[] = {{&weights.q, &q_}, {&weights.k, &k_}, {&weights.v, &v_}};
  matmul_.multiply(normalized_, products);
  for_each_row(tokens(), [&](Index row) { rotate(row); });
}

void Llama::finish(Index layer) {
  const Layer& weights = layers_[static_cast<std::size_t>(layer)];
  matmul_.multiply_add(attended_, weights.attention_out, hidden_);
  for (Index first = 0; first < tokens(); first += mlp_rows) {
    normalize(first, std::min(mlp_rows, tokens() - first), weights.mlp_norm);
    matmul_.multiply_gated(normalized_, weights.gate, weights.up, gate_, up_);
    matmul_.multiply_add(gate_, weights.down, hidden_, first);
  }
}

const RowMatrix& Llama::logits_of(Index first, Index n) {
  normalize(first, n, final_norm_);
  matmul_.multiply(normalized_, head_, logits_);
  return logits_;
}

// The logits of the batch's rows that are wanted, which it puts one behind the other at the top of hidden_.
const RowMatrix& Llama::logits_of_wanted() {
  Index wanted = 0;
  for (const Part& part : parts_) {
    const Index end = part.first + part.n;
    for (Index row = end - part.n_logits; row < end; ++row, ++wanted) {
      if (row != wanted) hidden_.row(wanted) = hidden_.row(row);
    }
  }
  return logits_of(0, wanted);
}

// normalized_ = rows [first, first + n) of hidden_, divided by their root mean square, times the weights.
void Llama::normalize(Index first, Index n, const std::vector<float>& weight) {
  const Index cols = hidden_.cols();
  normalized_.resize(n, cols);
  for_each_row(n, [&](Index row) {
    kernels_.normalize(hidden_.data() + (first + row) * cols, weight.data(), cols, config_.rms_norm_eps,
                       normalized_.data() + row * cols);
  });
}

// Turns the pairs (2i, 2i + 1) at the front of each head by the token's angles.
void Llama::rotate(Index row) {
  const float* const cosines = cosines_.data() + row * config_.rope_dims;
  const float* const sines = sines_.data() + row * config_.rope_dims;
  for (RowMatrix* const x : {&q_, &k_}) {
    float* const heads = x->data() + row * x->cols();
    for (Index at = 0; at < x->cols(); at += config_.head_dim) kernels_.rotate(heads + at, cosines, sines, config_.rope_dims);
  }
}

}  // namespace engine
