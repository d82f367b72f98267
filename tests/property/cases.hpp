// SPDX-License-Identifier: Apache-2.0
// How many random cases a property test runs: TINYLLM_PROPERTY_CASES in the environment, or a short default.
#pragma once

#include <cstdlib>
#include <string>

namespace property {

inline std::size_t cases(std::size_t by_default) {
  const char* wanted = std::getenv("TINYLLM_PROPERTY_CASES");
  return wanted == nullptr ? by_default : std::stoul(wanted);
}

}  // namespace property
