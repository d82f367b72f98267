// SPDX-License-Identifier: Apache-2.0
// The types in which a cache stores numbers, and rounding float values to them.
//
//     static_assert(tinyllm::StorageType<Eigen::half>);
//     std::size_t overflowed = tinyllm::store_row(source, stride, count, destination);
//
// Rounding is IEEE round to nearest even; a finite value too large for the type becomes an infinity and is counted.
#pragma once

#include <tinyllm/core/types.hpp>

#include <Eigen/Core>

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstring>

namespace tinyllm {

/// A type that a cache can keep its rows in: float, Eigen::half or Eigen::bfloat16.
template <class T>
concept StorageType = std::same_as<T, float> || std::same_as<T, Eigen::half> || std::same_as<T, Eigen::bfloat16>;

/// Rounds `count` floats, `stride` elements apart, to `Dtype` and stores them one after the other.
/// Returns how many finite values became infinite.
/// Pre: `destination` holds `count` elements and does not overlap `source`.
template <StorageType Dtype>
std::size_t store_row(const float* source, Index stride, Index count, Dtype* destination) {
  if constexpr (std::same_as<Dtype, float>) {
    if (stride == 1) {
      std::memcpy(destination, source, static_cast<std::size_t>(count) * sizeof(float));
    } else {
      for (Index i = 0; i < count; ++i) destination[i] = source[i * stride];
    }
    return 0;
  } else {
    std::size_t overflowed = 0;
    for (Index i = 0; i < count; ++i) {
      const float value = source[i * stride];
      const Dtype rounded(value);
      destination[i] = rounded;
      overflowed += static_cast<std::size_t>(std::isinf(static_cast<float>(rounded)) && std::isfinite(value));
    }
    return overflowed;
  }
}

}  // namespace tinyllm
