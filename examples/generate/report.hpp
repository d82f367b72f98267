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

#include <cstddef>
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

/// What a batch of prompts came to.
struct BatchReport {
  std::vector<Report> results;
  double load_s = 0;
  double total_s = 0;  ///< from the first pass to the last token
  tinyllm::Index forward_calls = 0;
  tinyllm::Index forward_rows = 0;
  tinyllm::Index preemptions = 0;  ///< times that a request lost its cache to older ones and was computed again
  std::size_t cache_bytes = 0;     ///< of all blocks that were in use at the same time at most
};

/// The k highest logits, highest first, the lowest id first on a tie; NaN is lower than any number.
TopLogits top_logits(std::span<const float> logits, tinyllm::Index k);

/// One object on one line.
std::string to_json(const Report& report);

/// One object on one line: the results as for a single prompt, and what they took together.
std::string to_json(const BatchReport& report);

/// The ids as a JSON array on one line.
std::string to_json(std::span<const tinyllm::TokenId> ids);

std::string score_text(const Report& report);
std::string stats_text(const Report& report);
std::string stats_text(const BatchReport& report);

/// A line for each: id, a tab, logit.
std::string logits_text(const TopLogits& logits);

}  // namespace cli
