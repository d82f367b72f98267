// SPDX-License-Identifier: Apache-2.0
// WatchedModel: a model that shows how a long prompt goes in, can be interrupted there, and remembers what came out.
//
//     cli::WatchedModel<engine::Llama> watched(model);
//     tinyllm::generate(watched, tokenizer, prompt, params, cache);
//     watched.prompt_logits();                                  // of the first pass, which is the prompt's
//
// Errors: Interrupted between two chunks of a pass; what the model throws. Lifetime: must not outlive the model.
#pragma once

#include "interrupt.hpp"
#include "terminal.hpp"

#include <tinyllm/cache/cache_concepts.hpp>
#include <tinyllm/core/types.hpp>

#include <span>
#include <vector>

namespace cli {

template <class Model>
class WatchedModel {
 public:
  /// Tokens of one chunk: enough that products of matrices run at full speed, few enough that Ctrl-C is heard soon.
  static constexpr tinyllm::Index chunk = 512;

  explicit WatchedModel(Model& model) : model_(model) {}

  decltype(auto) config() const { return model_.config(); }

  /// As the model's own. Shape: [1, V]
  template <class Cache>
  const tinyllm::RowMatrix& forward(std::span<const tinyllm::TokenId> ids, tinyllm::Positions positions, Cache& cache) {
    ProgressBar bar("prefill", positions.size());
    // A cache that keeps nothing must see everything in one pass.
    if constexpr (!tinyllm::RecomputesEverything<Cache>) {
      while (positions.size() > chunk) {
        if (interrupted()) throw Interrupted();
        model_.forward(ids.first(static_cast<std::size_t>(chunk)), {positions.first(), chunk}, cache);
        ids = ids.subspan(static_cast<std::size_t>(chunk));
        positions = {positions.first() + chunk, positions.size() - chunk};
        bar.advance(chunk);
      }
    }
    const tinyllm::RowMatrix& logits = model_.forward(ids, positions, cache);
    if (prompt_logits_.empty()) prompt_logits_.assign(logits.data(), logits.data() + logits.cols());
    return logits;
  }

  /// The logits after the prompt; empty before the first pass. Shape: [V]
  std::span<const float> prompt_logits() const { return prompt_logits_; }

 private:
  Model& model_;
  std::vector<float> prompt_logits_;
};

}  // namespace cli
