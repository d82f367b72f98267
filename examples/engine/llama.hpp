// SPDX-License-Identifier: Apache-2.0
// Llama: the forward pass of a Llama-family model read from a GGUF file.
//
//     auto gguf = std::make_shared<const engine::Gguf>("model.gguf");
//     engine::Llama model(gguf, pool, engine::Activations::q8);
//     const tinyllm::RowMatrix& logits = model.forward(ids, cache.positions(n), cache);    // [1, V], of the last token
//
// Pre-norm RMSNorm, rotary positions on adjacent pairs, grouped-query attention through the cache, SwiGLU, tied or untied head.
// Weights are repacked at load; the file's pages are given back as that goes on. Errors: `FileError` when the file is no such
// model; std::out_of_range for ids or positions that do not exist, before the cache is touched. Lifetime: keeps the file; must
// not outlive the pool. Results stay valid until the next call. Threads: one pass at a time.
#pragma once

#include "gguf.hpp"
#include "llama_config.hpp"
#include "matmul.hpp"
#include "panels.hpp"

#include <tinyllm/attention/attend.hpp>
#include <tinyllm/cache/chunk_view.hpp>
#include <tinyllm/core/executor.hpp>
#include <tinyllm/core/types.hpp>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

namespace engine {

/// Symbols: T tokens of a pass, V vocabulary, E hidden_size, F intermediate_size, H query heads, H_kv kv heads, d head_dim.
class Llama {
 public:
  /// Throws: `FileError` if the file is not a Llama that this engine can run, naming the key or tensor that is wrong.
  Llama(std::shared_ptr<const Gguf> gguf, tinyllm::ThreadPool& pool, Activations activations = Activations::f32,
        const Kernels& kernels = best_kernels());

  const LlamaConfig& config() const { return config_; }

  /// One pass over new tokens at these positions; the cache gets each layer's keys and values and shows all it holds.
  /// Returns the last token's logits. Shape: [1, V]
  /// Throws: std::invalid_argument if there are no ids or not as many positions; std::out_of_range for an id outside the
  ///   vocabulary or a position outside the context; what the cache throws.
  /// Cost: allocates nothing once a pass of this length has run
  template <class Cache>
  const RowMatrix& forward(std::span<const tinyllm::TokenId> ids, tinyllm::Positions positions, Cache& cache) {
    run_layers(ids, positions, cache);
    return logits_of(tokens() - 1, 1);
  }

  /// As `forward`, with the logits of every token. Shape: [T, V]
  template <class Cache>
  const RowMatrix& forward_all(std::span<const tinyllm::TokenId> ids, tinyllm::Positions positions, Cache& cache) {
    run_layers(ids, positions, cache);
    return logits_of(0, tokens());
  }

  /// As `forward`, calling `f(i, logits)` for each token i in order; never holds more than a few rows of logits.
  /// Shape: logits is a std::span<const float> of [V], valid during the call
  template <class Cache, class F>
  void for_each_logits(std::span<const tinyllm::TokenId> ids, tinyllm::Positions positions, Cache& cache, F&& f) {
    run_layers(ids, positions, cache);
    for (Index first = 0; first < tokens(); first += logit_rows) {
      const Index n = std::min(logit_rows, tokens() - first);
      const RowMatrix& logits = logits_of(first, n);
      for (Index i = 0; i < n; ++i) {
        f(first + i, std::span<const float>(logits.data() + i * logits.cols(), static_cast<std::size_t>(logits.cols())));
      }
    }
  }

 private:
  /// Rows of logits held at once by `for_each_logits`.
  static constexpr Index logit_rows = 32;

  struct Layer {
    std::vector<float> attention_norm;  // [E]
    WeightMatrix q;                     // [H·d, E]
    WeightMatrix k;                     // [H_kv·d, E]
    WeightMatrix v;                     // [H_kv·d, E]
    WeightMatrix attention_out;         // [E, H·d]
    std::vector<float> mlp_norm;        // [E]
    WeightMatrix gate;                  // [F, E]
    WeightMatrix up;                    // [F, E]
    WeightMatrix down;                  // [E, F]
  };

  template <class Cache>
  void run_layers(std::span<const tinyllm::TokenId> ids, tinyllm::Positions positions, Cache& cache) {
    begin(ids, positions);
    for (Index layer = 0; layer < config_.num_hidden_layers; ++layer) {
      project(layer);
      const auto& view = cache.update(layer, tinyllm::ChunkView::from_projection(k_, config_.num_key_value_heads),
                                      tinyllm::ChunkView::from_projection(v_, config_.num_key_value_heads));
      tinyllm::attend(view, q_, attended_, attention_, {.level = kernels_.level}, pool_);
      finish(layer);
    }
  }

  Index tokens() const { return hidden_.rows(); }
  void load_layers();
  std::vector<float> load_norm(const std::string& name) const;

  void begin(std::span<const tinyllm::TokenId> ids, tinyllm::Positions positions);
  void project(Index layer);
  void finish(Index layer);
  const RowMatrix& logits_of(Index first, Index n);

  void normalize(Index first, Index n, const std::vector<float>& weight);
  void rotate(Index row);
  /// Calls f(row) for each row in [0, n), over the threads where that pays.
  template <class F>
  void for_each_row(Index n, F f) const;

  std::shared_ptr<const Gguf> gguf_;
  tinyllm::ThreadPool& pool_;
  const Kernels& kernels_;
  LlamaConfig config_;
  std::vector<double> frequencies_;      // [rope_dims / 2]
  std::unique_ptr<PanelMemory> memory_;  // of all matrices
  WeightMatrix embedding_;               // [V, E]
  WeightMatrix head_;                    // [V, E]: the embedding itself if tied
  std::vector<float> final_norm_;        // [E]
  std::vector<Layer> layers_;
  Matmul matmul_;
  tinyllm::AttendWorkspace attention_;

  // One pass's activations.
  RowMatrix hidden_;      // [T, E]
  RowMatrix normalized_;  // [rows at work, E]
  RowMatrix q_;           // [T, H·d]
  RowMatrix k_;           // [T, H_kv·d]
  RowMatrix v_;           // [T, H_kv·d]
  RowMatrix attended_;    // [T, H·d]
  RowMatrix gate_;        // [rows at work, F]
  RowMatrix up_;          // [rows at work, F]
  RowMatrix logits_;      // [rows asked for, V]
  RowMatrix cosines_;     // [T, rope_dims]: each twice
  RowMatrix sines_;       // [T, rope_dims]: -sine, sine
};

}  // namespace engine
