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
#include <tinyllm/generate/generation.hpp>
#include <tinyllm/sampling/params.hpp>
#include <tinyllm/sampling/random.hpp>
#include <tinyllm/sampling/sampler.hpp>
#include <tinyllm/text/text_stream.hpp>
#include <tinyllm/text/tokenizer.hpp>

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tinyllm {

/// The ids that end an answer: those given, or the tokenizer's own `eos_ids()` if none are.
class EosIds {
 public:
  EosIds() = default;
  EosIds(std::initializer_list<TokenId> ids) : ids_(ids) {}
  EosIds(std::vector<TokenId> ids) : ids_(std::move(ids)) {}
  /// No id ends the answer.
  static EosIds none() { return std::vector<TokenId>(); }

  template <class Tok>
  std::vector<TokenId> of(const Tok& tokenizer) const {
    if (ids_) return *ids_;
    if constexpr (requires {
                    { tokenizer.eos_ids() } -> IdRange;
                  }) {
      const auto& own = tokenizer.eos_ids();
      return {std::ranges::begin(own), std::ranges::end(own)};
    } else {
      return {};
    }
  }

 private:
  std::optional<std::vector<TokenId>> ids_;
};

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
        stream_(tokenizer, {.stop = params.stop,
                            .include_stop = params.include_stop,
                            .min_tokens = params.min_tokens,
                            .clusters = params.whole_graphemes ? Clusters::whole : Clusters::any}),
        sampler_(params),
        rng_(request_rng(params.seed)),
        eos_ids_(eos_ids.of(tokenizer)),
        max_tokens_(params.max_tokens),
        min_tokens_(params.min_tokens),
        cancel_(params.cancel),
        context_(std::min<Index>(max_positions(model), cache.capacity())),
        tokens_(std::move(prompt)) {
    check_causal_lm<Model, Cache>();
    result_.finish_reason = FinishReason::cancelled;  // what it is if the run is left before its end
    result_.stop_kind = StopKind::cancelled;
    prompt_size_ = tokens_.size();
    check_prompt();
    stream_.prime(tokens_);
    if constexpr (!RecomputesEverything<Cache>) {
      const Index reused = std::min<Index>(cache_.seq_len(), n_tokens() - 1);
      cache_.truncate(reused);
      result_.stats.cached_tokens = reused;
    }
    result_.stats.prompt_tokens = n_tokens();
    reserve();
    if (max_tokens_ == 0) end(StopKind::max_tokens);
  }
  GenerationRun(Model&, const Tok&&, std::vector<TokenId>, const SamplingParams&, Cache&, const EosIds& = {}) = delete;
  GenerationRun(const GenerationRun&) = delete;  // two runs cannot share a cache
  GenerationRun& operator=(const GenerationRun&) = delete;

  /// True once the answer is complete.
  bool done() const { return done_; }

  /// Generates one token; the text that became final by it, often none.
  /// Pre: !done()
  /// Invalidates: the text ends with the next step
  /// Cost: one forward pass; allocates nothing once warm
  std::string_view step() {
    TINYLLM_ASSERT(!done_);
    const auto started = Clock::now();
    const std::size_t before = result_.text.size();
    const bool prefill = result_.stats.forward_calls == 0;
    if (cancelled_ || cancel_.stop_requested()) {
      end(StopKind::cancelled);
    } else {
      take(forward_and_sample());
    }
    (prefill ? result_.timings.prefill_s : result_.timings.decode_s) +=
        std::chrono::duration<double>(Clock::now() - started).count();
    return std::string_view(result_.text).substr(before);
  }

  /// The next step ends the answer with what it has.
  void cancel() { cancelled_ = true; }

  /// The prompt's ids and those generated so far.
  std::span<const TokenId> tokens() const { return tokens_; }

  /// What the request came to, `cancelled` if it is not done.
  Generation result() && {
    const auto split = tokens_.begin() + static_cast<std::ptrdiff_t>(prompt_size_);
    result_.prompt_ids.assign(tokens_.begin(), split);
    result_.ids.assign(split, tokens_.end());
    result_.text_ranges = stream_.ranges();
    result_.stats.completion_tokens = static_cast<Index>(result_.ids.size());
    result_.stats.unknown_ids = static_cast<Index>(stream_.unknown_ids());
    if constexpr (requires { cache_.nbytes(); }) result_.stats.cache_bytes = cache_.nbytes();
    return std::move(result_);
  }

 private:
  using Clock = std::chrono::steady_clock;

  Index n_tokens() const { return static_cast<Index>(tokens_.size()); }
  std::span<const TokenId> prompt() const { return std::span(tokens_).first(prompt_size_); }
  std::span<const TokenId> generated() const { return std::span(tokens_).subspan(prompt_size_); }

  void check_prompt() const {
    if (tokens_.empty()) throw std::invalid_argument("generate: the prompt is empty");
    if (n_tokens() >= context_) {
      throw std::invalid_argument(detail::message("generate: a prompt of ", tokens_.size(),
                                                  " tokens leaves no room for a token in a context of ", context_));
    }
  }

  void reserve() {
    constexpr Index most = 1 << 16;  // beyond this, growing by doubling is no cost
    const Index room = std::min({context_ - n_tokens(), max_tokens_.value_or(most), most});
    tokens_.reserve(tokens_.size() + static_cast<std::size_t>(room));
    stream_.reserve(static_cast<std::size_t>(room));
    result_.logprobs.reserve(static_cast<std::size_t>(room));
    result_.entropies.reserve(static_cast<std::size_t>(room));
    result_.text.reserve(static_cast<std::size_t>(room) * 8);
  }

  Sampled forward_and_sample() {
    const Index held = cache_.seq_len();
    if (held >= n_tokens()) {
      throw std::logic_error(detail::message("generate: the cache holds ", held, " positions of ", n_tokens(),
                                             " known tokens: somebody else has used it"));
    }
    const std::span<const TokenId> fresh = std::span(tokens_).subspan(static_cast<std::size_t>(held));
    ++result_.stats.forward_calls;
    result_.stats.forward_rows += static_cast<Index>(fresh.size());
    try {
      decltype(auto) logits = model_.forward(fresh, Positions(cache_.positions(static_cast<Index>(fresh.size()))), cache_);
      TINYLLM_ASSERT(RecomputesEverything<Cache> || n_tokens() == static_cast<Index>(cache_.seq_len()));
      return sample_last_row(logits);
    } catch (...) {
      cache_.truncate(held);  // a torn pass, or one whose logits came to nothing, leaves nothing behind
      throw;
    }
  }

  template <class L>
  Sampled sample_last_row(const L& logits) {
    if constexpr (requires { logits.rowStride(); }) {
      if constexpr (L::IsVectorAtCompileTime) {
        return sample_row(Eigen::Ref<const Eigen::RowVectorXf>(logits.derived().reshaped().transpose()));
      } else {
        if (logits.rows() < 1) throw std::invalid_argument("generate: the model gave no logits");
        return sample_row(Eigen::Ref<const Eigen::RowVectorXf>(logits.row(logits.rows() - 1)));
      }
    } else {
      return sampler_.sample({std::ranges::data(logits), std::ranges::size(logits)}, generated(), rng_, prompt(), forbidden());
    }
  }

  Sampled sample_row(const Eigen::Ref<const Eigen::RowVectorXf>& row) {
    return sampler_.sample({row.data(), static_cast<std::size_t>(row.size())}, generated(), rng_, prompt(), forbidden());
  }

  // No end before min_tokens.
  std::span<const TokenId> forbidden() const {
    return static_cast<Index>(generated().size()) < min_tokens_ ? std::span<const TokenId>(eos_ids_)
                                                                : std::span<const TokenId>();
  }

  // Text → stop string → max_tokens → context; an end token comes before them all and adds no text.
  void take(const Sampled& next) {
    if (std::find(eos_ids_.begin(), eos_ids_.end(), next.id) != eos_ids_.end()) return end(StopKind::eos);
    result_.text += stream_.push(next.id);  // first: if the tokenizer throws, the id was never generated
    tokens_.push_back(next.id);
    result_.logprobs.push_back(next.logprob);
    result_.entropies.push_back(next.entropy);
    if (stream_.stopped()) {
      end(StopKind::stop_string);
    } else if (max_tokens_ && static_cast<Index>(generated().size()) >= *max_tokens_) {
      end(StopKind::max_tokens);
    } else if (n_tokens() >= context_) {
      end(StopKind::context);
    }
  }

  // What is held goes out through the stop strings, which may end the answer after all.
  void end(StopKind kind) {
    result_.text += stream_.finish();
    result_.stop_kind = stream_.stopped() ? StopKind::stop_string : kind;
    result_.finish_reason = finish_reason(result_.stop_kind);
    result_.matched_stop = stream_.matched();
    done_ = true;
  }

  Model& model_;
  Cache& cache_;
  TextStream<Tok> stream_;
  Sampler sampler_;
  Rng rng_;
  std::vector<TokenId> eos_ids_;
  std::optional<Index> max_tokens_;
  Index min_tokens_;
  std::stop_token cancel_;
  bool cancelled_ = false;
  Index context_;
  std::vector<TokenId> tokens_;  // the prompt's and the generated ids: all that is known
  std::size_t prompt_size_ = 0;
  Generation result_;
  bool done_ = false;
};

}  // namespace tinyllm
