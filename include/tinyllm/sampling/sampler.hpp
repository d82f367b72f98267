// SPDX-License-Identifier: Apache-2.0
// The choice of the next token from a row of logits.
//
//     Rng rng = request_rng(params.seed);
//     Sampled next = sample(logits, params, generated_ids, rng, prompt_ids);
//     next.id, next.logprob                 // logprob of the raw logits, natural logarithm
//
// Order: logit_bias → repetition penalty → presence and frequency penalty → temperature → min_p → top_k → top_p. At
// temperature 0 the choice is greedy: the highest logit, the lowest id on a tie. NaN is never chosen.
#pragma once

#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>
#include <tinyllm/sampling/params.hpp>
#include <tinyllm/sampling/random.hpp>

#include <algorithm>
#include <cmath>
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

/// Log-probability of one id under the softmax of raw logits; NaN logits count as impossible.
/// Units: nats
/// Pre: 0 <= id < logits.size()
inline float log_probability(std::span<const float> logits, TokenId id) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const float chosen = logits[static_cast<std::size_t>(id)];
  float highest = -infinity;
  for (const float x : logits) {
    if (x > highest) highest = x;
  }
  if (std::isinf(highest)) return chosen == infinity ? 0.0F : -infinity;  // no finite reference point
  if (std::isnan(chosen)) return -infinity;
  double sum = 0;
  for (const float x : logits) {
    if (!std::isnan(x)) sum += std::exp(static_cast<double>(x - highest));
  }
  return static_cast<float>(static_cast<double>(chosen - highest) - std::log(sum));
}

/// The highest logit, the lowest id on a tie, NaN never.
/// Throws: std::invalid_argument if nothing is left to choose: no logits, or all of them NaN or -inf.
inline TokenId greedy_choice(std::span<const float> logits) {
  float highest = -std::numeric_limits<float>::infinity();
  TokenId best = -1;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > highest) {
      highest = logits[i];
      best = static_cast<TokenId>(i);
    }
  }
  if (best < 0) {
    throw std::invalid_argument(detail::message("nothing to choose: none of ", logits.size(), " logits is above -inf"));
  }
  return best;
}

/// Throws: std::invalid_argument for a parameter that makes no sense, naming it with its value.
inline void check_params(const SamplingParams& params) {
  const auto refuse = [](const char* name, auto value, const char* range) {
    throw std::invalid_argument(detail::message(name, " ", value, " is not ", range));
  };
  if (params.max_tokens && *params.max_tokens < 0) refuse("max_tokens", *params.max_tokens, "at least 0");
  if (params.min_tokens < 0) refuse("min_tokens", params.min_tokens, "at least 0");
  if (!(params.temperature >= 0) || std::isinf(params.temperature))
    refuse("temperature", params.temperature, "finite and at least 0");
  if (!(params.min_p >= 0 && params.min_p <= 1)) refuse("min_p", params.min_p, "in [0, 1]");
  if (params.top_k < 0) refuse("top_k", params.top_k, "at least 0");
  if (!(params.top_p > 0 && params.top_p <= 1)) refuse("top_p", params.top_p, "in (0, 1]");
  if (!(params.repetition_penalty > 0) || std::isinf(params.repetition_penalty)) {
    refuse("repetition_penalty", params.repetition_penalty, "finite and above 0");
  }
  if (!std::isfinite(params.presence_penalty)) refuse("presence_penalty", params.presence_penalty, "finite");
  if (!std::isfinite(params.frequency_penalty)) refuse("frequency_penalty", params.frequency_penalty, "finite");
}

/// Chooses tokens for one request; keeps its buffers from call to call, so that it allocates nothing once warm.
/// Threads: one sampler, one thread
class Sampler {
 public:
  /// Throws: std::invalid_argument for parameters that make no sense.
  explicit Sampler(const SamplingParams& params) : params_(params) { check_params(params); }

  /// The next token. `history` are the generated ids, `prompt` those before them; `never` are ids that must not be chosen.
  /// Shape: logits [V], raw
  /// Throws: std::invalid_argument if nothing is left to choose or a biased id is outside the vocabulary.
  Sampled sample(std::span<const float> logits, std::span<const TokenId> history, Rng& rng, std::span<const TokenId> prompt,
                 std::span<const TokenId> never = {}) {
    if (params_.temperature == 0) {
      const TokenId id = greedy_choice(adjusted(logits, history, prompt, never));
      return {id, log_probability(logits, id), 0.0};
    }
    const std::span<const Candidate> drawable = candidates(logits, history, prompt, never);
    const TokenId id = draw(drawable, rng);
    return {id, log_probability(logits, id), entropy_of(drawable)};
  }

  /// The ids that may be drawn, in the order of ids; one at temperature 0.
  /// Invalidates: the span ends with the next call
  std::span<const Candidate> candidates(std::span<const float> logits, std::span<const TokenId> history,
                                        std::span<const TokenId> prompt, std::span<const TokenId> never = {}) {
    const std::span<const float> scores = adjusted(logits, history, prompt, never);
    const float highest = scores[static_cast<std::size_t>(greedy_choice(scores))];
    kept_.clear();
    if (params_.temperature == 0) {
      kept_.push_back({greedy_choice(scores), 1.0});
      return kept_;
    }
    weigh(scores, highest);
    keep_top_k();
    keep_top_p();
    std::sort(kept_.begin(), kept_.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
    normalise();
    return kept_;
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

  // exp((score - highest) / temperature) of each id that can be drawn and that min_p keeps.
  void weigh(std::span<const float> scores, float highest) {
    for (std::size_t i = 0; i < scores.size(); ++i) {
      const float score = scores[i];
      if (std::isnan(score) || std::isinf(score) != std::isinf(highest)) continue;
      // Equal scores share the highest weight, also where all are +inf and their difference would be NaN.
      const double weight =
          score == highest ? 1.0 : std::exp(static_cast<double>(score - highest) / static_cast<double>(params_.temperature));
      if (weight > 0 && weight >= static_cast<double>(params_.min_p)) kept_.push_back({static_cast<TokenId>(i), weight});
    }
  }

  static bool likelier(const Candidate& a, const Candidate& b) {
    return a.probability > b.probability || (a.probability == b.probability && a.id < b.id);
  }

  void keep_top_k() {
    const auto k = static_cast<std::size_t>(params_.top_k);
    if (k == 0 || k >= kept_.size()) return;
    std::nth_element(kept_.begin(), kept_.begin() + static_cast<std::ptrdiff_t>(k), kept_.end(), likelier);
    kept_.resize(k);
  }

  void keep_top_p() {
    if (params_.top_p >= 1) return;
    std::sort(kept_.begin(), kept_.end(), likelier);
    normalise();
    double sum = 0;
    std::size_t n = 0;
    while (n < kept_.size() && (n == 0 || sum < static_cast<double>(params_.top_p))) sum += kept_[n++].probability;
    kept_.resize(n);
  }

  void normalise() {
    double sum = 0;
    for (const Candidate& c : kept_) sum += c.probability;
    for (Candidate& c : kept_) c.probability /= sum;
  }

  static TokenId draw(std::span<const Candidate> candidates, Rng& rng) {
    const double u = uniform(rng);
    double sum = 0;
    for (const Candidate& c : candidates) {
      sum += c.probability;
      if (u < sum) return c.id;
    }
    return candidates.back().id;  // the sum may round to a little less than 1
  }

  SamplingParams params_;
  std::vector<float> scores_;
  std::vector<unsigned char> seen_;
  std::vector<Candidate> kept_;
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

}  // namespace tinyllm
