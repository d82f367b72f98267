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
#include <limits>

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

/// A floating type that a cache can keep its rows in: float, Eigen::half or Eigen::bfloat16.
template <class T>
concept FloatStorageType = std::same_as<T, float> || std::same_as<T, Eigen::half> || std::same_as<T, Eigen::bfloat16>;

/// A type that a cache can keep its rows in. With std::int8_t each row has a scale of its own (see quantize).
template <class T>
concept StorageType = FloatStorageType<T> || std::same_as<T, std::int8_t>;

inline namespace TINYLLM_BUILD {

/// Converts `count` stored numbers to floats, exactly.
/// Pre: this machine runs `level`; the rows do not overlap
template <FloatStorageType Dtype>
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
template <FloatStorageType Dtype>
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
template <FloatStorageType Dtype>
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

/// Rounds `count` floats, `stride` elements apart, to integers in [-127, 127] times one scale, the row's largest magnitude
/// divided by 127. Returns the scale: value ≈ scale · integer, off by half a scale at most. A row whose scale would be
/// subnormal becomes zeros; one that is not all finite becomes zeros with a scale that is not a number.
/// Pre: `destination` holds `count` elements and does not overlap `source`; this machine runs `level`
[[nodiscard]] inline float quantize(const float* source, Index stride, Index count, std::int8_t* destination,
                                    [[maybe_unused]] CpuLevel level = best_level()) {
  constexpr Index most = 1024;
  float gathered[most];
  const float* row = source;
  Index first = 0;
  const auto gather = [&](Index n) {
    if (stride == 1) {
      row = source + first;
    } else {
      row = gathered;
      for (Index i = 0; i < n; ++i) gathered[i] = source[(first + i) * stride];
    }
  };
  bool finite = true;
  float largest = 0;
  for (first = 0; first < count; first += most) {
    const Index n = count - first < most ? count - first : most;
    gather(n);
    float magnitude = 0;
#if TINYLLM_X86_LEVELS
    if (level >= CpuLevel::avx512) {
      finite = avx512::largest_magnitude(row, n, magnitude) && finite;
    } else if (level == CpuLevel::avx2) {
      finite = avx2::largest_magnitude(row, n, magnitude) && finite;
    } else
#endif
      finite = portable::largest_magnitude(row, n, magnitude) && finite;
    if (magnitude > largest) largest = magnitude;
  }
  const float scale = largest / 127.0F;
  if (!finite || scale < std::numeric_limits<float>::min()) {
    std::memset(destination, 0, static_cast<std::size_t>(count));
    return finite ? 0.0F : std::numeric_limits<float>::quiet_NaN();
  }
  const float factor = 127.0F / largest;
  for (first = 0; first < count; first += most) {
    const Index n = count - first < most ? count - first : most;
    if (count > most || stride == 1) gather(n);
#if TINYLLM_X86_LEVELS
    if (level >= CpuLevel::avx512) {
      avx512::quantize_row(row, n, factor, destination + first);
      continue;
    }
    if (level == CpuLevel::avx2) {
      avx2::quantize_row(row, n, factor, destination + first);
      continue;
    }
#endif
    portable::quantize_row(row, n, factor, destination + first);
  }
  return scale;
}

/// The other way: destination = scale · source.
inline void dequantize(const std::int8_t* source, Index count, float scale, float* destination) {
  for (Index i = 0; i < count; ++i) destination[i] = scale * static_cast<float>(source[i]);
}

}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
