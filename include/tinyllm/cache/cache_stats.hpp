// SPDX-License-Identifier: Apache-2.0
// CacheStats: what happened to values on their way into a cache.
#pragma once

#include <cstddef>

namespace tinyllm {

/// Counts since the cache was made.
struct CacheStats {
  std::size_t overflowed = 0;  ///< finite values that became infinite in the storage type
};

}  // namespace tinyllm
