// SPDX-License-Identifier: Apache-2.0
// Llama: the forward pass of a Llama-family model read from a GGUF file.
//
//     auto gguf = std::make_shared<const engine::Gguf>("model.gguf");
//     engine::Llama model(gguf, pool, {.activations = engine::Activations::q8});
//     const tinyllm::RowMatrix& logits = model.forward(ids, cache.positions(n), cache);    // [1, V], of the last token
//     tinyllm::Scheduler scheduler(model, tokenizer, blocks);                              // many sequences: forward_batch
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
#include <tinyllm/batching/batch_causal_lm.hpp>
#include <tinyllm/cache/chunk_view.hpp>
#include <tinyllm/core/executor.hpp>
#include <tinyllm/core/types.hpp>

#include <algorithm>
#include <atomic>
#include <memory>
#include <span>
#include <vector>

namespace engine {

/// How a model computes.
struct LlamaOptions {
  Activations activations = Activations::f32;
  /// Of attention in passes over one sequence. With `reproducible` a token's logits are the same bits in whatever chunks its
  /// sequence comes, on any number of threads, and the same as from `forward_batch`; without it q8 activations can make other
  /// ids of a difference in the last bit. With `rounding` prompts of thousands of tokens go in some 12 % faster; single tokens
  /// do not.
  tinyllm::Exactness exactness = tinyllm::Exactness::reproducible;
  const Kernels& kernels = best_kernels();
};

/// Symbols: T tokens of a pass, V vocabulary, E hidden_size, F intermediate_size, H query heads, H_kv kv heads, d head_dim.
class Llama {
 public:
  /// Throws: `FileError` if the file is not a Llama that this engine can run, naming the key or tensor that is wrong.
  Llama(std::shared_ptr<const Gguf> gguf, tinyllm::ThreadPool& pool, const LlamaOptions& options = {});

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

  /// One pass over new tokens of many sequences: weights are read once for all of them. A token's logits are the same bits
  /// whatever is beside it, in whatever chunks its sequence comes, on any number of threads; attention is always
  /// `Exactness::reproducible`.
  /// Shape: [sum of n_logits, V], entry after entry
  /// Throws: as `forward`; std::invalid_argument if an entry wants logits of more tokens than it has
  /// Cost: allocates nothing once a pass of this shape has run
  template <class Cache>
  const RowMatrix& forward_batch(std::span<const tinyllm::BatchEntry<Cache>> batch) {
    begin_batch(batch);
    for (Index layer = 0; layer < config_.num_hidden_layers; ++layer) {
      project(layer);
      attend_batch(layer, batch);
      finish(layer);
    }
    return logits_of_wanted();
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

  /// The rows of a pass that are one sequence's.
  struct Part {
    Index first;
    Index n;
    Index n_logits;
    Index work;        // pairs of a token and a key that it sees
    bool all_threads;  // attend to it together; else each thread to another part
  };

  template <class Cache>
  void run_layers(std::span<const tinyllm::TokenId> ids, tinyllm::Positions positions, Cache& cache) {
    const auto n = static_cast<Index>(ids.size());
    begin(n);
    embed(ids, positions, 0);
    for (Index layer = 0; layer < config_.num_hidden_layers; ++layer) {
      project(layer);
      attend(layer, 0, n, cache, exactness_, workspaces_.front(), pool_);
      finish(layer);
    }
  }

  /// Rows [first, first + n) of the pass go into their cache and attend to all that it holds then.
  template <class Cache, class Executor>
  void attend(Index layer, Index first, Index n, Cache& cache, tinyllm::Exactness exactness,
              tinyllm::AttendWorkspace& workspace, Executor& executor) {
    const auto& view =
        cache.update(layer, tinyllm::ChunkView::from_projection(k_.middleRows(first, n), config_.num_key_value_heads),
                     tinyllm::ChunkView::from_projection(v_.middleRows(first, n), config_.num_key_value_heads));
    const Index cols = q_.cols();
    tinyllm::attend(view, {q_.data() + first * cols, n, cols, cols}, {attended_.data() + first * cols, n, cols, cols},
                    workspace, {.exactness = exactness, .level = kernels_.level}, executor);
  }

  template <class Cache>
  void begin_batch(std::span<const tinyllm::BatchEntry<Cache>> batch) {
    Index rows = 0;
    for (const auto& entry : batch) rows += static_cast<Index>(entry.ids.size());
    begin(rows);
    parts_.clear();
    for (const auto& entry : batch) add_part(entry.ids, entry.positions, entry.n_logits);
    // Caches may share a pool of blocks. What is reserved can be appended by several threads at once.
    bool reserved = true;
    if constexpr (requires(Cache & cache) { static_cast<bool>(cache.reserve(1)); }) {
      for (const auto& entry : batch) reserved = reserved && entry.cache->reserve(static_cast<Index>(entry.ids.size()));
    }
    share_out(reserved);
  }

  template <class Cache>
  void attend_batch(Index layer, std::span<const tinyllm::BatchEntry<Cache>> batch) {
    const auto attend_to = [&](std::size_t i, tinyllm::AttendWorkspace& workspace, auto& executor) {
      attend(layer, parts_[i].first, parts_[i].n, *batch[i].cache, tinyllm::Exactness::reproducible, workspace, executor);
    };
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (parts_[i].all_threads) attend_to(i, workspaces_.front(), pool_);
    }
    std::atomic<std::size_t> next{0};
    pool_.run(std::min(pool_.concurrency(), n_alone_), [&](Index worker) {
      const tinyllm::SerialExecutor serial;
      for (std::size_t i = next++; i < parts_.size(); i = next++) {
        if (!parts_[i].all_threads) attend_to(i, workspaces_[static_cast<std::size_t>(worker)], serial);
      }
    });
  }

  Index tokens() const { return hidden_.rows(); }
  void load_layers();
  std::vector<float> load_norm(const std::string& name) const;

  void begin(Index n);
  void embed(std::span<const tinyllm::TokenId> ids, tinyllm::Positions positions, Index first);
  void add_part(std::span<const tinyllm::TokenId> ids, tinyllm::Positions positions, Index n_logits);
  void share_out(bool reserved);
  void project(Index layer);
  void finish(Index layer);
  const RowMatrix& logits_of(Index first, Index n);
  const RowMatrix& logits_of_wanted();

  void normalize(Index first, Index n, const std::vector<float>& weight);
  void rotate(Index row);
  /// Calls f(row) for each row in [0, n), over the threads where that pays.
  template <class F>
  void for_each_row(Index n, F f) const;

  std::shared_ptr<const Gguf> gguf_;
  tinyllm::ThreadPool& pool_;
  const Kernels& kernels_;
  tinyllm::Exactness exactness_;
  LlamaConfig config_;
  std::vector<double> frequencies_;      // [rope_dims / 2]
  std::unique_ptr<PanelMemory> memory_;  // of all matrices
  WeightMatrix embedding_;               // [V, E]
  WeightMatrix head_;                    // [V, E]: the embedding itself if tied
  std::vector<float> final_norm_;        // [E]
  std::vector<Layer> layers_;
  Matmul matmul_;
  std::vector<tinyllm::AttendWorkspace> workspaces_;  // one a thread

  // A batch's pass.
  std::vector<Part> parts_;
  Index n_alone_ = 0;  // parts of one thread each

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
