// SPDX-License-Identifier: Apache-2.0
// BatchCausalLM: what a model must offer so that rows of many sequences go through it at once.
//
//     struct MyModel {
//       template <class Cache>
//       RowMatrix forward_batch(std::span<const BatchEntry<Cache>> batch);     // [sum of n_logits, V]
//     };
//     static_assert(tinyllm::BatchCausalLM<MyModel, tinyllm::PagedKVCache<float>>);
//
// Everything but attention sees all rows as one matrix; in each layer, for each entry in turn, `forward_batch` calls
// `entry.cache->update(layer, k, v)` with that entry's rows and attends over the view that it returns.
#pragma once

#include <tinyllm/cache/cache_concepts.hpp>
#include <tinyllm/core/types.hpp>

#include <concepts>
#include <span>
#include <type_traits>

namespace tinyllm {

/// One sequence's part of a pass.
template <class Cache>
struct BatchEntry {
  std::span<const TokenId> ids;  ///< its new tokens, at least one
  Positions positions;           ///< theirs, behind what the cache holds
  Cache* cache = nullptr;        ///< its own: no two entries of a batch have the same
  Index n_logits = 1;            ///< of so many of its last tokens logits are wanted, perhaps of none
};

/// A float Eigen matrix.
/// Shape: [rows asked for, V], entry after entry
template <class T>
concept BatchLogits = std::derived_from<std::remove_cvref_t<T>, Eigen::DenseBase<std::remove_cvref_t<T>>> &&
                      std::same_as < typename std::remove_cvref_t<T>::Scalar,
float > ;

/// Has a forward pass that takes entries of several sequences.
template <class Model, class Cache>
concept HasForwardBatch = requires(Model& model, std::span<const BatchEntry<Cache>> batch) {
  model.forward_batch(batch);
};

/// A model that `Scheduler` can run with this cache.
template <class Model, class Cache>
concept BatchCausalLM = SequenceCache<Cache> && HasForwardBatch<Model, Cache> &&
    requires(Model& model, std::span<const BatchEntry<Cache>> batch) {
  { model.forward_batch(batch) } -> BatchLogits;
};

/// Refuses a model or cache that does not fit, in words that say what to write.
template <class Model, class Cache>
consteval void check_batch_causal_lm() {
  static_assert(SequenceCache<Cache>,
                "tinyllm: the cache needs seq_len(), capacity(), positions(T) and truncate(n); "
                "use tinyllm::PagedKVCache or see tinyllm/cache/cache_concepts.hpp");
  static_assert(HasForwardBatch<Model, Cache>,
                "tinyllm: the model needs a member forward_batch(std::span<const tinyllm::BatchEntry<Cache>> batch) that calls "
                "entry.cache->update(layer, k, v) once a layer for each entry");
  if constexpr (HasForwardBatch<Model, Cache>) {
    static_assert(BatchCausalLM<Model, Cache>,
                  "tinyllm: forward_batch must return the logits as a float Eigen matrix [sum of n_logits, V]");
  }
}

}  // namespace tinyllm
