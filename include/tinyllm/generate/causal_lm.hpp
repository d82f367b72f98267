// SPDX-License-Identifier: Apache-2.0
// CausalLM: what a model must offer to be generated from, and its sizes by their Hugging Face names.
//
//     struct MyModel {
//       RowMatrix forward(std::span<const TokenId> ids, Positions positions, auto& cache);   // [T, V], or [1, V]: the last row
//     };
//     static_assert(tinyllm::CausalLM<MyModel, tinyllm::KVCache<float>>);
//     tinyllm::KVCache<Eigen::half> cache(tinyllm::cache_dims(model));
//
// `forward` calls `cache.update(layer, k, v)` once a layer.
#pragma once

#include <tinyllm/cache/cache_concepts.hpp>
#include <tinyllm/cache/kv_cache.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

#include <concepts>
#include <limits>
#include <optional>
#include <ranges>
#include <span>
#include <type_traits>

namespace tinyllm {

/// A float matrix [T, V] whose last row counts, or the last row alone as a contiguous range of floats.
template <class T>
concept Logits = (std::derived_from<std::remove_cvref_t<T>, Eigen::DenseBase<std::remove_cvref_t<T>>> &&
                  std::same_as<typename std::remove_cvref_t<T>::Scalar, float>) ||
                 (std::ranges::contiguous_range<T> && std::same_as<std::remove_cv_t<std::ranges::range_value_t<T>>, float>);

/// Has a forward pass that takes new ids, their positions and a cache.
template <class Model, class Cache>
concept HasForward = requires(Model& model, std::span<const TokenId> ids, Positions positions, Cache& cache) {
  model.forward(ids, positions, cache);
};

/// A model that `generate` can run with this cache.
template <class Model, class Cache>
concept CausalLM = SequenceCache<Cache> && HasForward<Model, Cache> &&
    requires(Model& model, std::span<const TokenId> ids, Positions positions, Cache& cache) {
  { model.forward(ids, positions, cache) } -> Logits;
};

/// Refuses a model or cache that does not fit, in words that say what to write.
template <class Model, class Cache>
consteval void check_causal_lm() {
  static_assert(SequenceCache<Cache>,
                "tinyllm: the cache needs seq_len(), capacity(), positions(T) and truncate(n); "
                "use tinyllm::KVCache or see tinyllm/cache/cache_concepts.hpp");
  static_assert(HasForward<Model, Cache>,
                "tinyllm: the model needs a member forward(std::span<const tinyllm::TokenId> ids, "
                "tinyllm::Positions positions, Cache& cache) that calls cache.update(layer, k, v) once a layer");
  if constexpr (HasForward<Model, Cache>) {
    static_assert(CausalLM<Model, Cache>,
                  "tinyllm: forward must return the logits as a float Eigen matrix [T, V] or [1, V], "
                  "or the last row alone as a contiguous range of float");
  }
}

namespace detail {

template <class T>
std::optional<Index> as_size(const T& value) {
  if constexpr (requires { value.has_value(); }) {
    return value.has_value() ? std::optional<Index>(static_cast<Index>(*value)) : std::nullopt;
  } else {
    return static_cast<Index>(value);
  }
}

// A model's configuration: the member `config`, the member function `config()`, or the model itself.
template <class Model>
decltype(auto) config_of(const Model& model) {
  if constexpr (requires { model.config(); }) {
    return model.config();
  } else if constexpr (requires { model.config; }) {
    return (model.config);
  } else {
    return (model);
  }
}

}  // namespace detail

/// The model's longest sequence, `max_position_embeddings`; no limit if it does not say.
/// Units: positions
template <class Model>
Index max_positions(const Model& model) {
  const auto& config = detail::config_of(model);
  if constexpr (requires { config.max_position_embeddings; }) {
    return detail::as_size(config.max_position_embeddings).value_or(std::numeric_limits<Index>::max());
  } else {
    return std::numeric_limits<Index>::max();
  }
}

/// The sizes of a cache for this model, read from its configuration's Hugging Face names: `num_hidden_layers`,
/// `num_key_value_heads` (or `num_attention_heads` where all heads have keys of their own), `head_dim` or
/// `hidden_size / num_attention_heads`, `max_position_embeddings`. Members may be std::optional; a size that is missing is 0,
/// which a cache refuses.
/// Throws: std::invalid_argument if hidden_size does not divide by the heads.
template <class Model>
CacheDims cache_dims(const Model& model, Index batch = 1) {
  const auto& config = detail::config_of(model);
  static_assert(
      requires { config.num_hidden_layers; }, "tinyllm: the model's config needs num_hidden_layers");
  static_assert(
      requires { config.num_attention_heads; } || requires { config.num_key_value_heads; },
      "tinyllm: the model's config needs num_key_value_heads or num_attention_heads");
  static_assert(
      requires { config.head_dim; } || requires { config.hidden_size, config.num_attention_heads; },
      "tinyllm: the model's config needs head_dim, or hidden_size and num_attention_heads");
  static_assert(
      requires { config.max_position_embeddings; }, "tinyllm: the model's config needs max_position_embeddings");

  std::optional<Index> kv_heads;
  std::optional<Index> d_head;
  if constexpr (requires { config.num_key_value_heads; }) kv_heads = detail::as_size(config.num_key_value_heads);
  if constexpr (requires { config.head_dim; }) d_head = detail::as_size(config.head_dim);
  if constexpr (requires { config.num_attention_heads; }) {
    const Index heads = detail::as_size(config.num_attention_heads).value_or(0);
    if (!kv_heads) kv_heads = heads;
    if constexpr (requires { config.hidden_size; }) {
      if (!d_head) {
        const Index hidden = detail::as_size(config.hidden_size).value_or(0);
        if (heads < 1 || hidden % heads != 0) {
          throw std::invalid_argument(
              detail::message("cache_dims: hidden_size ", hidden, " does not divide by num_attention_heads ", heads));
        }
        d_head = hidden / heads;
      }
    }
  }
  return {.n_layers = detail::as_size(config.num_hidden_layers).value_or(0),
          .n_kv_heads = kv_heads.value_or(0),
          .d_head = d_head.value_or(0),
          .max_len = detail::as_size(config.max_position_embeddings).value_or(0),
          .batch = batch};
}

}  // namespace tinyllm
