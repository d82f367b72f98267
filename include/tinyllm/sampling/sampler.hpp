// SPDX-License-Identifier: Apache-2.0
// The choice of the next token from a row of logits.
//
//     Rng rng = request_rng(params.seed);
//     Sampled next = sample(logits, params, generated_ids, rng, prompt_ids);
//     next.id, next.logprob                 // logprob of the raw logits, natural logarithm
//
// Order: logit_bias → repetition penalty → presence and frequency penalty → temperature → min_p → top_k → top_p. At
// temperature 0 the choice is greedy: the highest logit, the lowest id on a tie. NaN is never chosen.
// Filters keep a beginning of the order of scores, the lowest id first on a tie. The result does not depend on the level.
#pragma once

#include <tinyllm/core/cpu_level.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/simd_region.hpp>
#include <tinyllm/core/types.hpp>
#include <tinyllm/sampling/kernels.hpp>
#include <tinyllm/sampling/params.hpp>
#include <tinyllm/sampling/random.hpp>
#include <tinyllm/sampling/score_blocks.hpp>
#include <tinyllm/sampling/score_pool.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

namespace tinyllm {

/// A chosen token.
/// Units: nats; logprob of the raw logits, entropy of the distribution that the id was drawn from (0 if greedy)
struct Sampled {
  TokenId id = 0;
  float logprob = 0.0F;
  double entropy = 0.0;
};

/// An id that may be drawn, with its probability among those that may.
struct Candidate {
  TokenId id = 0;
  double probability = 0;
};

/// Units: nats
inline double entropy_of(std::span<const Candidate> candidates) {
  double entropy = 0;
  for (const Candidate& c : candidates) {
    if (c.probability > 0) entropy -= c.probability * std::log(c.probability);
  }
  return entropy;
}

namespace sampler_detail {

[[noreturn]] inline void nothing_to_choose(std::size_t n) {
  throw std::invalid_argument(detail::message("nothing to choose: none of ", n, " logits is above -inf"));
}

/// The weights of scores at a temperature, as far as they are weights at all.
inline Softmax softmax_at(float highest, float temperature) {
  const double lowest =
      std::fma(static_cast<double>(temperature), static_cast<double>(least_exponent), static_cast<double>(highest));
  return {highest, 1.0F / temperature, first_from(lowest)};
}

/// `sum` is that of the weights at temperature 1; it is not used where the highest score is infinite.
inline float log_share(float chosen, float highest, double sum) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  if (std::isinf(highest)) return chosen == infinity ? 0.0F : -infinity;  // no finite reference point
  if (std::isnan(chosen)) return -infinity;
  return static_cast<float>(static_cast<double>(chosen) - static_cast<double>(highest) - std::log(sum));
}

inline float log_share_of(std::span<const float> logits, TokenId id, float highest, const SamplingKernels& kernels) {
  Tail tail;
  const ScoreBlocks blocks = blocks_of(logits, tail);
  const double sum = std::isinf(highest) ? 0.0 : kernels.sum(blocks, softmax_at(highest, 1.0F));
  return log_share(logits[static_cast<std::size_t>(id)], highest, sum);
}

}  // namespace sampler_detail

inline namespace TINYLLM_BUILD {

/// Log-probability of one id under the softmax of raw logits; NaN logits count as impossible.
/// Units: nats
/// Pre: 0 <= id < logits.size(); this machine runs `level`
inline float log_probability(std::span<const float> logits, TokenId id, CpuLevel level = best_level()) {
  const sampler_detail::SamplingKernels& kernels = sampler_detail::sampling_kernels(level);
  sampler_detail::Tail tail;
  const float highest = kernels.highest(sampler_detail::blocks_of(logits, tail), nullptr).score;
  return sampler_detail::log_share_of(logits, id, highest, kernels);
}

/// The highest logit, the lowest id on a tie, NaN never.
/// Pre: this machine runs `level`
/// Throws: std::invalid_argument if nothing is left to choose: no logits, or all of them NaN or -inf.
inline TokenId greedy_choice(std::span<const float> logits, CpuLevel level = best_level()) {
  sampler_detail::Tail tail;
  const sampler_detail::Highest top =
      sampler_detail::sampling_kernels(level).highest(sampler_detail::blocks_of(logits, tail), nullptr);
  if (top.score == -std::numeric_limits<float>::infinity()) sampler_detail::nothing_to_choose(logits.size());
  auto best = static_cast<std::size_t>(top.block * sampler_detail::block);
  while (logits[best] != top.score) ++best;
  return static_cast<TokenId>(best);
}

}  // namespace TINYLLM_BUILD

/// Throws: std::invalid_argument for a parameter that makes no sense, naming it with its value.
inline void check_params(const SamplingParams& params) {
  const auto refuse = [](const char* name, auto value, const char* range) {
    throw std::invalid_argument(detail::message(name, " ", value, " is not ", range));
  };
  if (params.max_tokens && *params.max_tokens < 0) refuse("max_tokens", *params.max_tokens, "at least 0");
  if (params.min_tokens < 0) refuse("min_tokens", params.min_tokens, "at least 0");
  for (const auto& [id, bias] : params.logit_bias) {
    if (std::isnan(bias)) refuse("logit_bias", bias, "a number");
  }
  const float temperature = params.temperature;
  if (temperature != 0 && !(temperature >= least_temperature && temperature <= most_temperature)) {
    refuse("temperature", temperature, "0 or in [1e-30, 1e30]");
  }
  if (!(params.min_p >= 0 && params.min_p <= 1)) refuse("min_p", params.min_p, "in [0, 1]");
  if (params.top_k < 0) refuse("top_k", params.top_k, "at least 0");
  if (!(params.top_p > 0 && params.top_p <= 1)) refuse("top_p", params.top_p, "in (0, 1]");
  if (!(params.repetition_penalty > 0) || std::isinf(params.repetition_penalty)) {
    refuse("repetition_penalty", params.repetition_penalty, "finite and above 0");
  }
  if (!std::isfinite(params.presence_penalty)) refuse("presence_penalty", params.presence_penalty, "finite");
  if (!std::isfinite(params.frequency_penalty)) refuse("frequency_penalty", params.frequency_penalty, "finite");
}

inline namespace TINYLLM_BUILD {

/// Chooses tokens for one request; keeps its buffers from call to call, so that it allocates nothing once warm.
/// Cost: a few passes over the logits; nothing is sorted but some hundred of them
/// Threads: one sampler, one thread
class Sampler {
 public:
  /// Pre: this machine runs `level`
  /// Throws: std::invalid_argument for parameters that make no sense.
  explicit Sampler(const SamplingParams& params, CpuLevel level = best_level()) : params_(params), level_(level) {
    check_params(params);
  }

  /// The next token. `history` are the generated ids, `prompt` those before them; `never` are ids that must not be chosen.
  /// Shape: logits [V], raw
  /// Throws: std::invalid_argument if nothing is left to choose or a biased id is outside the vocabulary.
  Sampled sample(std::span<const float> logits, std::span<const TokenId> history, Rng& rng, std::span<const TokenId> prompt,
                 std::span<const TokenId> never = {}) {
    const std::span<const float> scores = adjusted(logits, history, prompt, never);
    if (params_.temperature == 0) {
      const TokenId id = greedy_choice(scores, level_);
      highest_ = scores[static_cast<std::size_t>(id)];
      return {id, log_probability_of(id, logits, scores), 0.0};
    }
    filter(scores);
    const TokenId id = id_of(draw(rng));
    const double entropy = std::max(0.0, std::log(kept_.weights) - kept_.weighted / kept_.weights);
    if (whole_softmax_ && scores.data() == logits.data()) {  // its sum is known already
      return {id, sampler_detail::log_share(logits[static_cast<std::size_t>(id)], highest_, all_weights_), entropy};
    }
    return {id, log_probability_of(id, logits, scores), entropy};
  }

  /// The ids that may be drawn, in the order of ids; one at temperature 0. An id whose probability is less than e^-87 of the
  /// highest one never is.
  /// Invalidates: the span ends with the next call
  std::span<const Candidate> candidates(std::span<const float> logits, std::span<const TokenId> history,
                                        std::span<const TokenId> prompt, std::span<const TokenId> never = {}) {
    const std::span<const float> scores = adjusted(logits, history, prompt, never);
    candidates_.clear();
    if (params_.temperature == 0) {
      candidates_.push_back({greedy_choice(scores, level_), 1.0});
      return candidates_;
    }
    filter(scores);
    for (std::size_t b = 0; b < sums_.size(); ++b) {
      if (sums_[b] == 0) continue;
      for (std::size_t i = b * block_size; i < (b + 1) * block_size; ++i) {
        if (weights_[i] > 0) candidates_.push_back({id_of(i), static_cast<double>(weights_[i]) / kept_.weights});
      }
    }
    return candidates_;
  }

  /// The logits after bias and penalties, before temperature.
  /// Shape: [V]
  /// Invalidates: the span ends with the next call
  std::span<const float> adjusted(std::span<const float> logits, std::span<const TokenId> history,
                                  std::span<const TokenId> prompt, std::span<const TokenId> never = {}) {
    const bool repetition = params_.repetition_penalty != 1;
    const bool counted = params_.presence_penalty != 0 || params_.frequency_penalty != 0;
    if (!repetition && !counted && params_.logit_bias.empty() && never.empty()) return logits;

    scores_.assign(logits.begin(), logits.end());
    for (const auto& [id, bias] : params_.logit_bias) {
      if (!in_vocabulary(id)) {
        throw std::invalid_argument(detail::message("logit_bias: id ", id, " is not in [0, ", scores_.size(), ")"));
      }
      scores_[static_cast<std::size_t>(id)] += bias;
    }
    if (repetition) {
      for_each_distinct(prompt, history, [this](float& score) {
        score = score > 0 ? score / params_.repetition_penalty : score * params_.repetition_penalty;
      });
    }
    if (counted) {
      for_each_distinct(history, {}, [this](float& score) { score -= params_.presence_penalty; });
      for (const TokenId id : history) {
        if (in_vocabulary(id)) scores_[static_cast<std::size_t>(id)] -= params_.frequency_penalty;
      }
    }
    for (const TokenId id : never) {
      if (in_vocabulary(id)) scores_[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
    }
    return scores_;
  }

 private:
  bool in_vocabulary(TokenId id) const { return id >= 0 && static_cast<std::size_t>(id) < scores_.size(); }

  // Applies f once to the score of each distinct id.
  template <class F>
  void for_each_distinct(std::span<const TokenId> first, std::span<const TokenId> second, F f) {
    seen_.assign(scores_.size(), 0);
    for (const std::span<const TokenId> ids : {first, second}) {
      for (const TokenId id : ids) {
        if (!in_vocabulary(id) || seen_[static_cast<std::size_t>(id)] != 0) continue;
        seen_[static_cast<std::size_t>(id)] = 1;
        f(scores_[static_cast<std::size_t>(id)]);
      }
    }
  }

  // Of the raw logits, whose highest one is known if nothing has adjusted them.
  float log_probability_of(TokenId id, std::span<const float> logits, std::span<const float> scores) const {
    if (scores.data() != logits.data()) return log_probability(logits, id, level_);
    return sampler_detail::log_share_of(logits, id, highest_, sampler_detail::sampling_kernels(level_));
  }

  // Weights of what min_p, top_k and top_p leave; block by block, as sums_ says where there are any.
  void filter(std::span<const float> scores) {
    const sampler_detail::SamplingKernels& kernels = sampler_detail::sampling_kernels(level_);
    choose_pool(scores, kernels);
    weights_.resize(static_cast<std::size_t>(pool_.blocks().count) * block_size);
    sums_.resize(static_cast<std::size_t>(pool_.blocks().count));
    kept_ = kernels.weigh(pool_.blocks(), softmax_, weights_.data(), sums_.data());
    all_weights_ = kept_.weights;
    if (params_.top_p < 1) keep_top_p(kernels);
  }

  // The pool: what min_p and top_k leave if they make it smaller, else all.
  void choose_pool(std::span<const float> scores, const sampler_detail::SamplingKernels& kernels) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    gathered_ = false;
    pool_.set(scores, kernels);
    highest_ = pool_.highest();
    if (highest_ == -infinity) sampler_detail::nothing_to_choose(scores.size());
    const bool infinite = highest_ == infinity;
    if (infinite) {  // these share all there is
      if (scores.data() != scores_.data()) scores_.assign(scores.begin(), scores.end());
      for (float& score : scores_) score = score == infinity ? 0.0F : -infinity;
      pool_.set(scores_, kernels);
    }
    softmax_ = sampler_detail::softmax_at(pool_.highest(), params_.temperature);
    whole_softmax_ =
        !infinite && params_.temperature == 1 && params_.min_p == 0 && (params_.top_k == 0 || params_.top_k >= pool_.size());
    if (params_.min_p > 0) {
      const double least = std::fma(static_cast<double>(params_.temperature), std::log(static_cast<double>(params_.min_p)),
                                    static_cast<double>(pool_.highest()));
      softmax_.cut = std::max(softmax_.cut, sampler_detail::first_from(least));
    }
    if (params_.top_k > 0 && params_.top_k < pool_.size()) {
      const float low = std::max(softmax_.cut, pool_.reached_by(params_.top_k));
      shrink_pool(pool_.prefix(nullptr, static_cast<double>(params_.top_k), low, kernels), params_.top_k, kernels);
    } else if (params_.min_p > 0) {
      // Where most scores are kept, a pass over all of them costs less.
      shrink_pool(sampler_detail::all_from(softmax_.cut), std::max(sampler_detail::few, pool_.size() / 16), kernels);
    }
  }

  // Makes the pool what a prefix keeps, if that is no more than `most`.
  void shrink_pool(const sampler_detail::Prefix& prefix, Index most, const sampler_detail::SamplingKernels& kernels) {
    gathered_ids_.resize(static_cast<std::size_t>(most + sampler_detail::group));
    const Index n = kernels.collect(pool_.blocks(), pool_.maxima(), prefix, pool_.highest(), most, gathered_ids_.data());
    if (n > most) return;
    gathered_scores_.resize(gathered_ids_.size());
    for (Index i = 0; i < n; ++i) {
      gathered_scores_[static_cast<std::size_t>(i)] = pool_[gathered_ids_[static_cast<std::size_t>(i)]];
    }
    pool_.set(std::span(gathered_scores_).first(static_cast<std::size_t>(n)), kernels);
    gathered_ = true;
  }

  void keep_top_p(const sampler_detail::SamplingKernels& kernels) {
    const auto top_p = static_cast<double>(params_.top_p);
    // All below this weigh less than what top_p leaves out, were they as heavy as they could be.
    const double left_out = std::log((1 - top_p) * kept_.weights / static_cast<double>(pool_.size())) - 1;
    const double low = std::fma(static_cast<double>(params_.temperature), left_out, static_cast<double>(pool_.highest()));
    const sampler_detail::Prefix prefix =
        pool_.prefix(weights_.data(), top_p * kept_.weights, std::max(softmax_.cut, sampler_detail::first_from(low)), kernels);
    const Index end = std::min(pool_.size(), (prefix.last / sampler_detail::block + 1) * sampler_detail::block);
    for (Index i = prefix.last + 1; i < end; ++i) {
      if (pool_[i] == prefix.cut) weights_[static_cast<std::size_t>(i)] = 0;
    }
    kept_ = kernels.keep(pool_.blocks(), pool_.maxima(), softmax_, prefix, weights_.data(), sums_.data());
  }

  TokenId id_of(std::size_t index) const { return gathered_ ? gathered_ids_[index] : static_cast<TokenId>(index); }

  // The index whose share of the weights, in the order of indices, a random number falls into.
  std::size_t draw(Rng& rng) const {
    double rest = uniform(rng) * kept_.weights;
    std::size_t last = 0;  // with a weight: sums round, so that nothing may be left of `rest` too late
    for (std::size_t b = 0; b < sums_.size(); ++b) {
      if (sums_[b] == 0) continue;
      last = b;
      if (rest < static_cast<double>(sums_[b])) break;
      rest -= static_cast<double>(sums_[b]);
    }
    std::size_t chosen = last * block_size;
    for (std::size_t i = last * block_size; i < (last + 1) * block_size; ++i) {
      if (weights_[i] == 0) continue;
      chosen = i;
      if (rest < static_cast<double>(weights_[i])) break;
      rest -= static_cast<double>(weights_[i]);
    }
    return chosen;
  }

  static constexpr std::size_t block_size = static_cast<std::size_t>(sampler_detail::block);

  SamplingParams params_;
  CpuLevel level_;
  std::vector<float> scores_;
  std::vector<unsigned char> seen_;

  float highest_ = 0;  // of the scores
  sampler_detail::ScorePool pool_;
  bool gathered_ = false;  // then the pool holds the scores of gathered_ids_ alone
  std::vector<TokenId> gathered_ids_;
  std::vector<float> gathered_scores_;
  sampler_detail::Softmax softmax_ = {};
  std::vector<float> weights_;  // of the pool, block by block
  std::vector<float> sums_;     // of each block
  sampler_detail::Sums kept_ = {};
  double all_weights_ = 0;      // before top_p
  bool whole_softmax_ = false;  // they are those of all scores at temperature 1
  std::vector<Candidate> candidates_;
};

/// The next token, as `Sampler::sample` without its buffers.
/// Shape: logits [V], raw
/// Throws: std::invalid_argument as Sampler does.
inline Sampled sample(std::span<const float> logits, const SamplingParams& params, std::span<const TokenId> history, Rng& rng,
                      std::span<const TokenId> prompt = {}) {
  return Sampler(params).sample(logits, history, rng, prompt);
}

/// Entropy of the distribution that the next token is drawn from, after all parameters; 0 at temperature 0.
/// Units: nats
/// Throws: std::invalid_argument as Sampler does.
inline double sampled_entropy(std::span<const float> logits, const SamplingParams& params,
                              std::span<const TokenId> history = {}, std::span<const TokenId> prompt = {}) {
  Sampler sampler(params);
  return entropy_of(sampler.candidates(logits, history, prompt));
}

}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
