// SPDX-License-Identifier: Apache-2.0
// The types in which a cache stores numbers, and converting rows of floats to them and back.
//
//     static_assert(tinyllm::StorageType<Eigen::half>);
//     std::size_t overflowed = tinyllm::narrow(floats, count, halves);     // at the speed of memory
//     tinyllm::widen(halves, count, floats);
//
// Rounding is IEEE round to nearest even, subnormals included; what is not a number stays so; a finite value too large for
// the type becomes an infinity and is counted. Every level (cpu_level.hpp) gives the same values.
#pragma once

#include <tinyllm/core/cpu_level.hpp>
#include <tinyllm/core/simd_avx2.hpp>
#include <tinyllm/core/simd_avx512.hpp>
#include <tinyllm/core/simd_portable.hpp>
#include <tinyllm/core/simd_region.hpp>
#include <tinyllm/core/types.hpp>

#include <Eigen/Core>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define TINYLLM_LEVEL portable
#include <tinyllm/core/convert_kernels.hpp>
#undef TINYLLM_LEVEL

#if TINYLLM_X86_LEVELS
TINYLLM_TARGET_AVX2_BEGIN
#define TINYLLM_LEVEL avx2
#include <tinyllm/core/convert_kernels.hpp>
#undef TINYLLM_LEVEL
TINYLLM_TARGET_END

TINYLLM_TARGET_AVX512_BEGIN
#define TINYLLM_LEVEL avx512
#include <tinyllm/core/convert_kernels.hpp>
#undef TINYLLM_LEVEL
TINYLLM_TARGET_END
#endif

namespace tinyllm {

/// A type that a cache can keep its rows in: float, Eigen::half or Eigen::bfloat16.
template <class T>
concept StorageType = std::same_as<T, float> || std::same_as<T, Eigen::half> || std::same_as<T, Eigen::bfloat16>;

inline namespace TINYLLM_BUILD {

/// Converts `count` stored numbers to floats, exactly.
/// Pre: this machine runs `level`; the rows do not overlap
template <StorageType Dtype>
void widen(const Dtype* source, Index count, float* destination, [[maybe_unused]] CpuLevel level = best_level()) {
  if constexpr (std::same_as<Dtype, float>) {
    if (count > 0) std::memcpy(destination, source, static_cast<std::size_t>(count) * sizeof(float));
  } else {
#if TINYLLM_X86_LEVELS
    if (level >= CpuLevel::avx512) return avx512::widen_row(source, count, destination);
    if (level == CpuLevel::avx2) return avx2::widen_row(source, count, destination);
#endif
    portable::widen_row(source, count, destination);
  }
}

/// Rounds `count` floats to `Dtype`. Returns how many finite values became infinite.
/// Pre: this machine runs `level`; the rows do not overlap
template <StorageType Dtype>
std::size_t narrow(const float* source, Index count, Dtype* destination, [[maybe_unused]] CpuLevel level = best_level()) {
  if constexpr (std::same_as<Dtype, float>) {
    if (count > 0) std::memcpy(destination, source, static_cast<std::size_t>(count) * sizeof(float));
    return 0;
  } else {
    // Half-way from the largest finite number to what the next one would be, which is even: 65520 for half.
    constexpr std::uint32_t least_bits = std::same_as<Dtype, Eigen::half> ? 0x477ff000U : 0x7f7f8000U;
#if TINYLLM_X86_LEVELS
    if (level >= CpuLevel::avx512) return avx512::narrow_row(source, count, destination, least_bits);
    if (level == CpuLevel::avx2) return avx2::narrow_row(source, count, destination, least_bits);
#endif
    return portable::narrow_row(source, count, destination, least_bits);
  }
}

/// Rounds `count` floats, `stride` elements apart, to `Dtype` and stores them one after the other.
/// Returns how many finite values became infinite.
/// Pre: `destination` holds `count` elements and does not overlap `source`.
template <StorageType Dtype>
std::size_t store_row(const float* source, Index stride, Index count, Dtype* destination) {
  if (stride == 1) return narrow(source, count, destination);
  constexpr Index block = 64;
  float gathered[block];
  std::size_t overflowed = 0;
  for (Index first = 0; first < count; first += block) {
    const Index n = count - first < block ? count - first : block;
    for (Index i = 0; i < n; ++i) gathered[i] = source[(first + i) * stride];
    overflowed += narrow(gathered, n, destination + first);
  }
  return overflowed;
}

}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
