// SPDX-License-Identifier: Apache-2.0
// SamplingParams: how a request wants its tokens chosen and when it wants to end.
//
//     SamplingParams params{.max_tokens = 64, .temperature = 0.8F, .top_p = 0.95F, .seed = 7, .stop = {"\n\n"}};
//
// Greedy unless told otherwise. Names and meanings as in vLLM and Hugging Face; members in the order in which they apply.
#pragma once

#include <tinyllm/core/types.hpp>

#include <cstdint>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace tinyllm {

/// Temperatures above 0 lie between these: far beyond them every choice is greedy, or all are alike, and floats run out.
inline constexpr float least_temperature = 1e-30F;
inline constexpr float most_temperature = 1e30F;

struct SamplingParams {
  /// Most tokens to generate; none: until the context ends.
  std::optional<Index> max_tokens = std::nullopt;

  /// Added to the logits of these ids, before everything else; infinities force and forbid an id.
  std::vector<std::pair<TokenId, float>> logit_bias = {};
  /// Divides the positive, multiplies the other logits of each distinct id of prompt and answer. 1: off
  float repetition_penalty = 1.0F;
  /// Subtracted once from each id that was generated. 0: off
  float presence_penalty = 0.0F;
  /// Subtracted from each id as often as it was generated. 0: off
  float frequency_penalty = 0.0F;
  /// Divides the logits; 0 is greedy, else in [1e-30, 1e30].
  float temperature = 0.0F;
  /// Drops ids less probable than this share of the most probable one. 0: off
  float min_p = 0.0F;
  /// Keeps the k highest logits. 0: all
  Index top_k = 0;
  /// Keeps the most probable ids up to and with the one that makes their sum reach this. 1: all
  float top_p = 1.0F;
  /// Seed of the request's own random stream.
  std::uint64_t seed = 0;

  /// The text ends before the first of these strings.
  std::vector<std::string> stop = {};
  /// The text ends behind the stop string instead.
  bool include_stop = false;
  /// No end token is chosen and no stop string is looked for before so many tokens.
  Index min_tokens = 0;
  /// Text streams in whole graphemes: a terminal never draws half of an emoji.
  bool whole_graphemes = false;

  /// Asks a running generation to end with what it has.
  std::stop_token cancel = {};
};

}  // namespace tinyllm
