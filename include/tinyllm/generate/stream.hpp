// SPDX-License-Identifier: Apache-2.0
// stream: the text of an answer as a range, made as it is read.
//
//     for (std::string_view piece : stream(model, tokenizer, "Once upon a time", {.max_tokens = 64}, cache)) send(piece);
//
//     auto answer = stream(model, tokenizer, prompt, params, cache);      // or keep it, for what comes after the text
//     for (std::string_view piece : answer) send(piece);
//     Generation out = std::move(answer).result();
//
// Nothing is computed before it is asked for, and nothing after a loop is left. Model, tokenizer and cache must outlive it.
#pragma once

#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>
#include <tinyllm/generate/causal_lm.hpp>
#include <tinyllm/generate/generation.hpp>
#include <tinyllm/generate/generation_run.hpp>
#include <tinyllm/sampling/params.hpp>
#include <tinyllm/text/tokenizer.hpp>

#include <cstddef>
#include <iterator>
#include <ranges>
#include <string_view>
#include <utility>
#include <vector>

namespace tinyllm {

/// An input range of pieces, none of them empty; it can be gone through once.
template <class Model, Tokenizer Tok, class Cache>
class GenerationStream {
 public:
  class iterator {
   public:
    using value_type = std::string_view;
    using difference_type = std::ptrdiff_t;

    iterator() = default;
    explicit iterator(GenerationStream& stream) : stream_(&stream) { ++*this; }
    /// Invalidates: the piece ends with the next increment
    std::string_view operator*() const { return stream_->piece_; }
    iterator& operator++() {
      stream_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const iterator& it, std::default_sentinel_t) { return (*it).empty(); }

   private:
    GenerationStream* stream_ = nullptr;
  };

  /// Throws: as GenerationRun
  GenerationStream(Model& model, const Tok& tokenizer, std::vector<TokenId> prompt, const SamplingParams& params, Cache& cache,
                   const EosIds& eos_ids)
      : run_(model, tokenizer, std::move(prompt), params, cache, eos_ids) {}
  GenerationStream(const GenerationStream&) = delete;
  GenerationStream& operator=(const GenerationStream&) = delete;

  /// Generates up to the first piece.
  iterator begin() { return iterator(*this); }
  std::default_sentinel_t end() const { return {}; }

  /// True once the answer is complete.
  bool done() const { return run_.done(); }
  /// The next step ends the answer with what it has.
  void cancel() { run_.cancel(); }
  /// What it came to, or what there is of it if the range was left early.
  Generation result() && { return std::move(run_).result(); }

 private:
  void next() {
    piece_ = {};
    while (piece_.empty() && !run_.done()) piece_ = run_.step();
  }

  GenerationRun<Model, Tok, Cache> run_;
  std::string_view piece_;
};

/// The answer behind a prompt of ids.
template <class Model, Tokenizer Tok, class Cache>
GenerationStream<Model, Tok, Cache> stream(Model& model, const Tok& tokenizer, std::vector<TokenId> prompt,
                                           const SamplingParams& params, Cache& cache, const EosIds& eos_ids = {}) {
  return {model, tokenizer, std::move(prompt), params, cache, eos_ids};
}

/// The answer behind a prompt of text.
template <class Model, Tokenizer Tok, class Cache>
GenerationStream<Model, Tok, Cache> stream(Model& model, const Tok& tokenizer, std::string_view prompt,
                                           const SamplingParams& params, Cache& cache, const EosIds& eos_ids = {}) {
  auto&& ids = tokenizer.encode(prompt);
  return {model, tokenizer, std::vector<TokenId>(std::ranges::begin(ids), std::ranges::end(ids)), params, cache, eos_ids};
}

/// A temporary tokenizer would not outlive the range.
template <class Model, Tokenizer Tok, class Prompt, class Cache>
void stream(Model&, const Tok&&, Prompt&&, const SamplingParams&, Cache&, const EosIds& = {}) = delete;

}  // namespace tinyllm
