// SPDX-License-Identifier: Apache-2.0
// What a run came to, as one JSON object or as lines for people.
//
//     output.write(cli::to_json(report));
//     std::cerr << cli::stats_text(report);
//
// Bytes that are no UTF-8 appear as U+FFFD, numbers that are not finite as null, and null stands where a thing does not apply.
// Units: seconds, bytes, tokens. Errors: none. Lifetime: values of their own.
#pragma once

#include <tinyllm/core/types.hpp>
#include <tinyllm/generate/generation.hpp>

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace cli {

using TopLogits = std::vector<std::pair<tinyllm::TokenId, float>>;

struct Report {
  tinyllm::Generation run;          ///< after --score only prompt_ids, stats and the prefill's time
  std::vector<std::string> pieces;  ///< of the text, as they were streamed
  std::optional<TopLogits> prompt_logits;
  std::optional<double> nll;  ///< after --score
  double load_s = 0;
};

/// The k highest logits, highest first, the lowest id first on a tie; NaN is lower than any number.
TopLogits top_logits(std::span<const float> logits, tinyllm::Index k);

/// One object on one line.
std::string to_json(const Report& report);

/// The ids as a JSON array on one line.
std::string to_json(std::span<const tinyllm::TokenId> ids);

std::string score_text(const Report& report);
std::string stats_text(const Report& report);

/// A line for each: id, a tab, logit.
std::string logits_text(const TopLogits& logits);

}  // namespace cli
