// SPDX-License-Identifier: Apache-2.0
// Ctrl-C as a question that the program asks between two steps.
//
//     cli::catch_interrupts();
//     while (!run.done()) {
//       if (cli::interrupted()) run.cancel();
//       ...
//
// The second Ctrl-C ends the program at once. Errors: none. Threads: any may ask.
#pragma once

#include <stdexcept>

namespace cli {

/// From now on the first Ctrl-C only answers `interrupted()`.
void catch_interrupts();

bool interrupted();

/// Leaves a long prefill between two of its chunks.
struct Interrupted : std::runtime_error {
  Interrupted() : std::runtime_error("interrupted") {}
};

}  // namespace cli
