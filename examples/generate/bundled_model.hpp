// SPDX-License-Identifier: Apache-2.0
// Where the model that comes with the program lies.
//
//     const std::filesystem::path path = cli::bundled_model();
//
// Errors: UsageError if it is nowhere. Lifetime: a path of its own.
#pragma once

#include <filesystem>

namespace cli {

/// The file in the source tree that the program was built from; where that is gone, fables.gguf beside the program or in
/// ../share/tinyllm.
std::filesystem::path bundled_model();

}  // namespace cli
