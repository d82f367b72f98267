// SPDX-License-Identifier: Apache-2.0
// UsageError: what the user asked for cannot be done; one line says why, and the program ends with exit code 2.
//
//     throw UsageError("--prompt, --file and - exclude each other");
//
// Errors: none of its own. Lifetime: the text belongs to the exception.
#pragma once

#include <stdexcept>

namespace cli {

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace cli
