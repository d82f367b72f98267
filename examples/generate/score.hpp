// SPDX-License-Identifier: Apache-2.0
// score: how well a model predicts a text that it is given: what people judge cache types and quantisation by.
//
//     const cli::Score score = cli::score(model, ids, cache);
//     score.nll, std::exp(score.nll)                          // mean nats a token, perplexity
//
// Units: natural logarithms. Errors: Interrupted; what the model throws. Lifetime: a value of its own.
#pragma once

#include "interrupt.hpp"
#include "terminal.hpp"

#include <tinyllm/cache/cache_concepts.hpp>
#include <tinyllm/core/types.hpp>
#include <tinyllm/sampling/sampler.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

namespace cli {

struct Score {
  double nll = 0;  ///< mean of -log p(id i | ids before it), i = 1, 2, ...
  double seconds = 0;
  tinyllm::Index forward_calls = 0;
  tinyllm::Index forward_rows = 0;
  std::vector<float> last_logits;  ///< after the whole prompt
};

/// Pre: at least two ids, an empty cache.
template <class Model, class Cache>
Score score(Model& model, std::span<const tinyllm::TokenId> ids, Cache& cache) {
  using tinyllm::Index;
  const auto total = static_cast<Index>(ids.size());
  // A cache that keeps nothing must see everything in one pass.
  const Index chunk = tinyllm::RecomputesEverything<Cache> ? total : 256;
  const auto started = std::chrono::steady_clock::now();
  ProgressBar bar("score", total);
  Score result;
  double sum = 0;
  for (Index first = 0; first < total; first += chunk) {
    if (interrupted()) throw Interrupted();
    const Index n = std::min(chunk, total - first);
    const auto part = ids.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(n));
    model.for_each_logits(part, cache.positions(n), cache, [&](Index i, std::span<const float> logits) {
      const Index next = first + i + 1;
      if (next < total) {
        sum -= static_cast<double>(tinyllm::log_probability(logits, ids[static_cast<std::size_t>(next)]));
      } else {
        result.last_logits.assign(logits.begin(), logits.end());
      }
    });
    ++result.forward_calls;
    result.forward_rows += n;
    bar.advance(n);
  }
  result.nll = sum / static_cast<double>(total - 1);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return result;
}

}  // namespace cli
