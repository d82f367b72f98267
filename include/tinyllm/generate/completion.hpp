// SPDX-License-Identifier: Apache-2.0
// Completion: one request's prompt and its answer so far: how tokens are chosen, what text may go out, and when it ends.
//
//     Completion completion(tokenizer, prompt_ids, params, context, eos_ids);
//     while (!completion.done()) send(completion.take(completion.choose(logits_of(completion.tokens()))));
//     Generation result = std::move(completion).result();
//
// Where logits come from is not its business: `GenerationRun` asks a model for one sequence, `Scheduler` for many at once. The
// tokenizer must outlive it.
#pragma once

#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>
#include <tinyllm/generate/generation.hpp>
#include <tinyllm/sampling/params.hpp>
#include <tinyllm/sampling/random.hpp>
#include <tinyllm/sampling/sampler.hpp>
#include <tinyllm/text/text_stream.hpp>
#include <tinyllm/text/tokenizer.hpp>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <span>
#include <stop_token>
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

template <Tokenizer Tok>
class Completion {
 public:
  /// `context` is the most positions that prompt and answer may have together.
  /// Throws: std::invalid_argument if the prompt is empty or leaves no room for a token, or a parameter makes no sense.
  Completion(const Tok& tokenizer, std::vector<TokenId> prompt, const SamplingParams& params, Index context,
             const EosIds& eos_ids = {})
      : stream_(tokenizer, {.stop = params.stop,
                            .include_stop = params.include_stop,
                            .min_tokens = params.min_tokens,
                            .clusters = params.whole_graphemes ? Clusters::whole : Clusters::any}),
        sampler_(params),
        rng_(request_rng(params.seed)),
        eos_ids_(eos_ids.of(tokenizer)),
        max_tokens_(params.max_tokens),
        min_tokens_(params.min_tokens),
        cancel_(params.cancel),
        context_(context),
        tokens_(std::move(prompt)) {
    result_.finish_reason = FinishReason::cancelled;  // what it is if it is left before its end
    result_.stop_kind = StopKind::cancelled;
    prompt_size_ = tokens_.size();
    check_prompt();
    stream_.prime(tokens_);
    result_.stats.prompt_tokens = n_tokens();
    reserve();
    if (max_tokens_ == 0) end(StopKind::max_tokens);
  }
  Completion(const Tok&&, std::vector<TokenId>, const SamplingParams&, Index, const EosIds& = {}) = delete;

  /// True once the answer is complete.
  bool done() const { return done_; }
  /// The prompt's ids and those generated so far.
  std::span<const TokenId> tokens() const { return tokens_; }
  Index n_tokens() const { return static_cast<Index>(tokens_.size()); }

  /// It should end with what it has.
  void cancel() { cancelled_ = true; }
  /// Whether somebody asked for that.
  bool cancel_requested() const { return cancelled_ || cancel_.stop_requested(); }

  /// The next token, by the last row of these logits.
  /// Shape: a float matrix [T, V], or a range of V floats
  /// Throws: std::invalid_argument if there are no logits or nothing is left to choose.
  template <class L>
  Sampled choose(const L& logits) {
    if constexpr (requires { logits.rowStride(); }) {
      if constexpr (L::IsVectorAtCompileTime) {
        return choose_of_row(Eigen::Ref<const Eigen::RowVectorXf>(logits.derived().reshaped().transpose()));
      } else {
        if (logits.rows() < 1) throw std::invalid_argument("generate: the model gave no logits");
        return choose_of_row(Eigen::Ref<const Eigen::RowVectorXf>(logits.row(logits.rows() - 1)));
      }
    } else {
      return sampler_.sample({std::ranges::data(logits), std::ranges::size(logits)}, generated(), rng_, prompt(), forbidden());
    }
  }

  /// Goes on with a token; the text that became final by it, often none.
  /// Pre: !done()
  /// Invalidates: the text ends with the next call
  /// Cost: allocates nothing once warm
  std::string_view take(const Sampled& next) {
    TINYLLM_ASSERT(!done_);
    const std::size_t before = result_.text.size();
    append(next);
    return std::string_view(result_.text).substr(before);
  }

  /// Ends as cancelled; what was held of its text.
  /// Pre: !done()
  /// Invalidates: the text ends with the next call
  std::string_view stop() {
    TINYLLM_ASSERT(!done_);
    const std::size_t before = result_.text.size();
    end(StopKind::cancelled);
    return std::string_view(result_.text).substr(before);
  }

  /// What it took so far; whoever computes counts here.
  GenerationStats& stats() { return result_.stats; }
  /// Where the seconds of the step to come are counted: the prompt's until there is a token, then the answer's.
  double& seconds() { return generated().empty() ? result_.timings.prefill_s : result_.timings.decode_s; }

  /// What the request came to, `cancelled` if it is not done.
  Generation result() && {
    const auto split = tokens_.begin() + static_cast<std::ptrdiff_t>(prompt_size_);
    result_.prompt_ids.assign(tokens_.begin(), split);
    result_.ids.assign(split, tokens_.end());
    result_.text_ranges = stream_.ranges();
    result_.stats.completion_tokens = static_cast<Index>(result_.ids.size());
    result_.stats.unknown_ids = static_cast<Index>(stream_.unknown_ids());
    return std::move(result_);
  }

 private:
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

  Sampled choose_of_row(const Eigen::Ref<const Eigen::RowVectorXf>& row) {
    return sampler_.sample({row.data(), static_cast<std::size_t>(row.size())}, generated(), rng_, prompt(), forbidden());
  }

  // No end before min_tokens.
  std::span<const TokenId> forbidden() const {
    return static_cast<Index>(generated().size()) < min_tokens_ ? std::span<const TokenId>(eos_ids_)
                                                                : std::span<const TokenId>();
  }

  // Text → stop string → max_tokens → context; an end token comes before them all and adds no text.
  void append(const Sampled& next) {
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
