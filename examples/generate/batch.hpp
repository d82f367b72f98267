// SPDX-License-Identifier: Apache-2.0
// A batch: many prompts answered together, a line of text each.
//
//     std::vector<cli::BatchPrompt> prompts = cli::read_batch(text, tokenizer);
//     cli::check_batch(prompts, context);
//     cli::BatchReport report = cli::answer_batch(options, model, tokenizer, std::move(prompts), output);
//
// Each answer is the one that its prompt gets alone. Errors: UsageError naming the line; what model and sampler throw.
// Lifetime: nothing is kept.
#pragma once

#include "options.hpp"
#include "report.hpp"
#include "terminal.hpp"

#include "llama.hpp"
#include "tokenizer.hpp"

#include <tinyllm/core/types.hpp>

#include <string_view>
#include <vector>

namespace cli {

struct BatchPrompt {
  tinyllm::Index line;  ///< the first is 1
  std::vector<tinyllm::TokenId> ids;
};

/// The lines that are not blank. Line ends, `\n` or `\r\n`, are no part of a prompt.
/// Throws: UsageError if there are none.
std::vector<BatchPrompt> read_batch(std::string_view text, const engine::Tokenizer& tokenizer);

/// Throws: UsageError if a prompt leaves no room for a token in a context of so many.
void check_batch(const std::vector<BatchPrompt>& prompts, tinyllm::Index context);

/// Answers all prompts, until Ctrl-C or until nobody reads any more. Without `--json` each text is written when it ends.
BatchReport answer_batch(const Options& options, engine::Llama& model, const engine::Tokenizer& tokenizer,
                         std::vector<BatchPrompt> prompts, Output& output);

}  // namespace cli
