// SPDX-License-Identifier: Apache-2.0
// GenerationRun: one request's generate loop, a token a step; `generate` runs it to its end.
//
//     GenerationRun run(model, tokenizer, prompt_ids, params, cache, eos_ids);
//     while (!run.done()) send(run.step());
//     Generation result = std::move(run).result();
//
// Model, tokenizer and cache must outlive the run. If the model throws, the cache holds what it held before that pass.
#pragma once

#include <tinyllm/cache/cache_concepts.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>
#include <tinyllm/generate/causal_lm.hpp>
#include <tinyllm/generate/completion.hpp>
#include <tinyllm/generate/generation.hpp>
#include <tinyllm/sampling/params.hpp>
#include <tinyllm/sampling/sampler.hpp>
#include <tinyllm/text/tokenizer.hpp>

#include <algorithm>
#include <chrono>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tinyllm {

template <class Model, Tokenizer Tok, class Cache>
class GenerationRun {
 public:
  /// A cache that is not empty holds the beginning of this prompt, as after an earlier turn of a conversation (and as
  /// `past_key_values` in Hugging Face): only the rest goes through the model, at least the prompt's last token.
  /// An unrelated prompt needs an empty cache: call `cache.clear()` first.
  /// Throws: std::invalid_argument if the prompt is empty or leaves no room for a token, or a parameter makes no sense;
  ///   nothing changes then.
  GenerationRun(Model& model, const Tok& tokenizer, std::vector<TokenId> prompt, const SamplingParams& params, Cache& cache,
                const EosIds& eos_ids = {})
      : model_(model),
        cache_(cache),
        completion_(tokenizer, std::move(prompt), params, std::min<Index>(max_positions(model), cache.capacity()), eos_ids) {
    check_causal_lm<Model, Cache>();
    if constexpr (!RecomputesEverything<Cache>) {
      const Index reused = std::min<Index>(cache_.seq_len(), completion_.n_tokens() - 1);
      cache_.truncate(reused);
      completion_.stats().cached_tokens = reused;
    }
  }
  GenerationRun(Model&, const Tok&&, std::vector<TokenId>, const SamplingParams&, Cache&, const EosIds& = {}) = delete;
  GenerationRun(const GenerationRun&) = delete;  // two runs cannot share a cache
  GenerationRun& operator=(const GenerationRun&) = delete;

  /// True once the answer is complete.
  bool done() const { return completion_.done(); }

  /// Generates one token; the text that became final by it, often none.
  /// Pre: !done()
  /// Invalidates: the text ends with the next step
  /// Cost: one forward pass; allocates nothing once warm
  std::string_view step() {
    TINYLLM_ASSERT(!done());
    const auto started = Clock::now();
    double& seconds = completion_.seconds();
    const std::string_view piece = completion_.cancel_requested() ? completion_.stop() : completion_.take(forward_and_sample());
    seconds += std::chrono::duration<double>(Clock::now() - started).count();
    return piece;
  }

  /// The next step ends the answer with what it has.
  void cancel() { completion_.cancel(); }

  /// The prompt's ids and those generated so far.
  std::span<const TokenId> tokens() const { return completion_.tokens(); }

  /// What the request came to, `cancelled` if it is not done.
  Generation result() && {
    if constexpr (requires { cache_.nbytes(); }) completion_.stats().cache_bytes = cache_.nbytes();
    return std::move(completion_).result();
  }

 private:
  using Clock = std::chrono::steady_clock;

  Sampled forward_and_sample() {
    const Index held = cache_.seq_len();
    const Index known = completion_.n_tokens();
    if (held >= known) {
      throw std::logic_error(detail::message("generate: the cache holds ", held, " positions of ", known,
                                             " known tokens: somebody else has used it"));
    }
    const std::span<const TokenId> fresh = completion_.tokens().subspan(static_cast<std::size_t>(held));
    ++completion_.stats().forward_calls;
    completion_.stats().forward_rows += static_cast<Index>(fresh.size());
    try {
      decltype(auto) logits = model_.forward(fresh, Positions(cache_.positions(static_cast<Index>(fresh.size()))), cache_);
      TINYLLM_ASSERT(RecomputesEverything<Cache> || known == static_cast<Index>(cache_.seq_len()));
      return completion_.choose(logits);
    } catch (...) {
      cache_.truncate(held);  // a torn pass, or one whose logits came to nothing, leaves nothing behind
      throw;
    }
  }

  Model& model_;
  Cache& cache_;
  Completion<Tok> completion_;
};

}  // namespace tinyllm
