// SPDX-License-Identifier: Apache-2.0
// The command line of `generate`, read and checked.
//
//     const std::optional<cli::Options> options = cli::parse_options(argc, argv);
//     if (!options) return 0;                                // --help and --version have printed what they are for
//
// Errors: UsageError for anything that is no command line of this program, before any file is opened.
// Lifetime: values of their own.
#pragma once

#include "prompt.hpp"

#include "matmul.hpp"

#include <tinyllm/attention/attendable.hpp>
#include <tinyllm/core/types.hpp>
#include <tinyllm/generate/generate.hpp>
#include <tinyllm/sampling/params.hpp>

#include <optional>
#include <string>

namespace cli {

/// In what the cache stores keys and values.
enum class KvDtype { f32, f16, bf16, q8 };

/// What the program does with the prompt, or, in a batch, with each line of it.
enum class Task { generate, batch, tokenize, score };

struct Options {
  Task task = Task::generate;
  std::optional<std::string> model;  ///< none: the bundled one
  PromptSource prompt;
  tinyllm::SamplingParams sampling;
  bool ignore_eos = false;
  tinyllm::CacheMode cache = tinyllm::CacheMode::contiguous;
  KvDtype kv_dtype = KvDtype::f16;
  engine::Activations activations = engine::Activations::q8;
  tinyllm::Exactness exactness = tinyllm::Exactness::reproducible;
  tinyllm::Index threads = 1;
  tinyllm::Index top_logits = 0;  ///< how many of the highest logits after the prompt to show
  bool json = false;
  bool stats = false;
};

/// None after --help or --version, whose text is on stdout then.
/// Throws: UsageError in one line.
std::optional<Options> parse_options(int argc, const char* const* argv);

}  // namespace cli
