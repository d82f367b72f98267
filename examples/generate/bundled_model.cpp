// SPDX-License-Identifier: Apache-2.0
#include "bundled_model.hpp"

#include "usage_error.hpp"

#include <system_error>

namespace cli {

std::filesystem::path bundled_model() {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  for (const fs::path& candidate : {fs::path(TINYLLM_BUNDLED_MODEL), program.parent_path() / "fables.gguf",
                                    program.parent_path().parent_path() / "share" / "tinyllm" / "fables.gguf"}) {
    if (fs::exists(candidate, ignored)) return candidate;
  }
  throw UsageError("the bundled model '" TINYLLM_BUNDLED_MODEL "' is not there: give --model FILE");
}

}  // namespace cli
