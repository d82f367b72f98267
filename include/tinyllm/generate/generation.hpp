// SPDX-License-Identifier: Apache-2.0
// Generation: what a request came to: its text and ids, why it ended, and what it took.
#pragma once

#include <tinyllm/core/types.hpp>
#include <tinyllm/text/token_span.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tinyllm {

/// Why an answer ended, in the words of the OpenAI API.
enum class FinishReason { stop, length, cancelled };

/// What exactly ended it: an end token or a stop string (stop), max_tokens or the context (length), or the caller.
enum class StopKind { eos, stop_string, max_tokens, context, cancelled };

constexpr std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop: return "stop";
    case FinishReason::length: return "length";
    case FinishReason::cancelled: return "cancelled";
  }
  return "";
}

constexpr std::string_view to_string(StopKind kind) {
  switch (kind) {
    case StopKind::eos: return "eos";
    case StopKind::stop_string: return "stop_string";
    case StopKind::max_tokens: return "max_tokens";
    case StopKind::context: return "context";
    case StopKind::cancelled: return "cancelled";
  }
  return "";
}

constexpr FinishReason finish_reason(StopKind kind) {
  switch (kind) {
    case StopKind::eos:
    case StopKind::stop_string: return FinishReason::stop;
    case StopKind::max_tokens:
    case StopKind::context: return FinishReason::length;
    case StopKind::cancelled: return FinishReason::cancelled;
  }
  return FinishReason::stop;
}

/// Units: seconds
struct GenerationTimings {
  double prefill_s = 0;  ///< the prompt's forward pass and the choice of the first token
  double decode_s = 0;   ///< everything after that
};

struct GenerationStats {
  Index prompt_tokens = 0;
  Index completion_tokens = 0;
  Index cached_tokens = 0;  ///< of the prompt, already in the caller's cache
  Index forward_calls = 0;
  Index forward_rows = 0;  ///< tokens that went through the model
  Index unknown_ids = 0;   ///< generated ids that the tokenizer does not have
  std::size_t cache_bytes = 0;
};

/// An answer and all that is known of it.
struct Generation {
  std::string text;
  std::vector<TokenId> ids;
  std::vector<float> logprobs;         ///< one an id, of the raw logits, natural logarithm
  std::vector<double> entropies;       ///< one an id, of what it was drawn from, in nats; 0 if greedy
  std::vector<TextRange> text_ranges;  ///< one an id: the bytes of `text` that it contributed to
  FinishReason finish_reason = FinishReason::stop;
  StopKind stop_kind = StopKind::eos;
  std::optional<std::string> matched_stop;
  std::vector<TokenId> prompt_ids;
  GenerationTimings timings;
  GenerationStats stats;
};

}  // namespace tinyllm
