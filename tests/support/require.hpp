// SPDX-License-Identifier: Apache-2.0
// What TINYLLM_ASSERT is in tests: an exception, so that a test can see it. Included before everything else.
#pragma once

#define TINYLLM_ASSERT(condition) ::test_support::require((condition), #condition)

#include <stdexcept>

namespace test_support {

struct AssertionFailed : std::logic_error {
  using std::logic_error::logic_error;
};

inline void require(bool condition, const char* text) {
  if (!condition) throw AssertionFailed(text);
}

}  // namespace test_support
