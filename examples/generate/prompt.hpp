// SPDX-License-Identifier: Apache-2.0
// The prompt's text, from wherever the command line says.
//
//     const std::string prompt = cli::read_prompt({cli::PromptSource::Kind::file, "story.txt"});
//
// Nothing is added or changed: neither line ends nor bytes that are not UTF-8.
// Errors: UsageError naming the file. Lifetime: a string of its own.
#pragma once

#include <string>

namespace cli {

struct PromptSource {
  enum class Kind { text, file, standard_input };
  Kind kind = Kind::text;
  std::string value = {};  ///< the text or the file's name
};

std::string read_prompt(const PromptSource& source);

}  // namespace cli
