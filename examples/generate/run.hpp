// SPDX-License-Identifier: Apache-2.0
// A run of the program behind its command line: loads what the task needs, does it, and prints what came out.
//
//     return cli::run(options);
//
// Errors: UsageError, engine::FileError and whatever else goes wrong, as exceptions. Lifetime: nothing is kept.
#pragma once

#include "options.hpp"

namespace cli {

/// Returns the exit code: 0, or 130 after Ctrl-C.
int run(const Options& options);

}  // namespace cli
