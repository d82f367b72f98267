// SPDX-License-Identifier: Apache-2.0
// generate: a prompt in, streamed text out.
//
//     KVCache<Eigen::half> cache(cache_dims(model));
//     Generation out = generate(model, tokenizer, "Once upon a time", {.max_tokens = 64, .stop = {"\n\n"}}, cache,
//                               [](std::string_view piece) { send(piece); });
//
// The prompt goes through the model once, then each new token. What the callback received is never taken back. A cache that
// holds something is taken to hold the beginning of the prompt: call `cache.clear()` before an unrelated one.
#pragma once

#include <tinyllm/cache/cache_concepts.hpp>
#include <tinyllm/cache/kv_cache.hpp>
#include <tinyllm/cache/paged_kv_cache.hpp>
#include <tinyllm/cache/recompute.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>
#include <tinyllm/generate/causal_lm.hpp>
#include <tinyllm/generate/generation.hpp>
#include <tinyllm/generate/generation_run.hpp>
#include <tinyllm/sampling/params.hpp>
#include <tinyllm/text/tokenizer.hpp>

#include <concepts>
#include <ranges>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace tinyllm {

/// How `generate` remembers when it is given no cache object.
enum class CacheMode {
  none,        ///< recomputes everything for each token: slow, the oracle
  contiguous,  ///< a float KVCache for the model's whole context
  paged,       ///< a float PagedKVCache with a pool of its own
};

/// Throws: std::invalid_argument for a name that is no mode.
inline CacheMode parse_cache_mode(std::string_view name) {
  if (name == "none") return CacheMode::none;
  if (name == "contiguous") return CacheMode::contiguous;
  if (name == "paged") return CacheMode::paged;
  throw std::invalid_argument(detail::message("unknown cache mode '", name, "': none, contiguous and paged are known"));
}

namespace detail {

template <class T>
concept CacheObject = !std::convertible_to<T&, std::string_view> && !std::same_as<std::remove_cv_t<T>, CacheMode>;

struct IgnoreText {
  void operator()(std::string_view) const {}
};

}  // namespace detail

/// Generates behind a prompt of ids, over the caller's cache.
///
/// A cache that is not empty holds the beginning of the prompt; see GenerationRun.
/// `on_text` receives each piece of text that became final; it may return false to cancel, and is not called again then.
/// `eos_ids` end the answer and are in neither ids nor text; without them the tokenizer's own `eos_ids()` do, if it has any.
/// Throws: std::invalid_argument if the prompt is empty or leaves no room for a token, or a parameter makes no sense, with
///   nothing changed; whatever model and callback throw, with the cache whole.
template <class Model, Tokenizer Tok, detail::CacheObject Cache, class OnText = detail::IgnoreText>
Generation generate(Model& model, const Tok& tokenizer, std::vector<TokenId> prompt, const SamplingParams& params, Cache& cache,
                    OnText on_text = {}, const EosIds& eos_ids = {}) {
  check_causal_lm<Model, Cache>();
  static_assert(std::invocable<OnText&, std::string_view>, "tinyllm: on_text must take a std::string_view");
  GenerationRun<Model, Tok, Cache> run(model, tokenizer, std::move(prompt), params, cache, eos_ids);
  bool listening = true;
  while (!run.done()) {
    const std::string_view piece = run.step();
    if (piece.empty() || !listening) continue;
    if constexpr (std::same_as<std::invoke_result_t<OnText&, std::string_view>, bool>) {
      listening = on_text(piece);
      if (!listening) run.cancel();
    } else {
      on_text(piece);
    }
  }
  return std::move(run).result();
}

/// Generates behind a prompt of ids, with a cache of its own for this call.
template <class Model, Tokenizer Tok, class OnText = detail::IgnoreText>
Generation generate(Model& model, const Tok& tokenizer, std::vector<TokenId> prompt, const SamplingParams& params,
                    CacheMode mode = CacheMode::contiguous, OnText on_text = {}, const EosIds& eos_ids = {}) {
  if (mode == CacheMode::none) {
    RecomputeCache cache;
    return generate(model, tokenizer, std::move(prompt), params, cache, std::move(on_text), eos_ids);
  }
  if (mode == CacheMode::paged) {
    PagedKVCache<float> cache(cache_dims(model));
    return generate(model, tokenizer, std::move(prompt), params, cache, std::move(on_text), eos_ids);
  }
  KVCache<float> cache(cache_dims(model));
  return generate(model, tokenizer, std::move(prompt), params, cache, std::move(on_text), eos_ids);
}

/// As above, the mode by its name ("none", "contiguous", "paged").
template <class Model, Tokenizer Tok, class OnText = detail::IgnoreText>
Generation generate(Model& model, const Tok& tokenizer, std::vector<TokenId> prompt, const SamplingParams& params,
                    std::string_view mode, OnText on_text = {}, const EosIds& eos_ids = {}) {
  return generate(model, tokenizer, std::move(prompt), params, parse_cache_mode(mode), std::move(on_text), eos_ids);
}

/// As above, behind a prompt of text: `cache` is a cache object, a CacheMode or a mode's name.
template <class Model, Tokenizer Tok, class CacheOrMode = CacheMode, class OnText = detail::IgnoreText>
Generation generate(Model& model, const Tok& tokenizer, std::string_view prompt, const SamplingParams& params,
                    CacheOrMode&& cache = CacheMode::contiguous, OnText on_text = {}, const EosIds& eos_ids = {}) {
  auto&& ids = tokenizer.encode(prompt);
  return generate(model, tokenizer, std::vector<TokenId>(std::ranges::begin(ids), std::ranges::end(ids)), params, cache,
                  std::move(on_text), eos_ids);
}

}  // namespace tinyllm
