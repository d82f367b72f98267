// SPDX-License-Identifier: Apache-2.0
// The instruction sets that the library has code for, and which of them this processor runs.
//
//     tinyllm::CpuLevel level = tinyllm::best_level();          // found once, then remembered
//     options.level = tinyllm::CpuLevel::portable;              // what an old processor would run
//
// No compiler flag is needed: every level is compiled into every program, and one is chosen at run time.
#pragma once

#include <tinyllm/core/simd_region.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#endif

namespace tinyllm {

/// From the oldest processor to the newest; each level includes those before it.
enum class CpuLevel : std::uint8_t {
  portable,     ///< what the compiler makes of plain vector code with the flags it is given (NEON on 64-bit ARM)
  avx2,         ///< AVX2, FMA and F16C
  avx512,       ///< AVX-512 F, BW, DQ and VL
  avx512_vnni,  ///< and dot products of 8-bit integers
  avx512_bf16,  ///< and of bfloat16 pairs
};

/// All levels, oldest first.
inline constexpr std::array<CpuLevel, 5> cpu_levels = {CpuLevel::portable, CpuLevel::avx2, CpuLevel::avx512,
                                                       CpuLevel::avx512_vnni, CpuLevel::avx512_bf16};

constexpr const char* name(CpuLevel level) {
  constexpr std::array<const char*, 5> names = {"portable", "avx2", "avx512", "avx512_vnni", "avx512_bf16"};
  return names[static_cast<std::size_t>(level)];
}

inline namespace TINYLLM_BUILD {

namespace cpu_detail {

inline CpuLevel find_best_level() {
#if defined(__x86_64__) && defined(__GNUC__)
  const auto has = [](unsigned bits, unsigned bit) { return ((bits >> bit) & 1U) != 0; };
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return CpuLevel::portable;
  const bool fma_f16c = has(c, 12) && has(c, 28) && has(c, 29);
  if (!fma_f16c || !has(c, 27)) return CpuLevel::portable;  // 27: the system saves the wide registers
  std::uint32_t saved = 0;
  std::uint32_t high = 0;
  __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  if ((saved & 0x6U) != 0x6U || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || !has(b, 5)) return CpuLevel::portable;
  const bool avx512 = has(b, 16) && has(b, 17) && has(b, 30) && has(b, 31) && (saved & 0xe6U) == 0xe6U;
  if (!avx512) return CpuLevel::avx2;
  if (!has(c, 11)) return CpuLevel::avx512;
  const bool bf16 = __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && has(a, 5);
  return bf16 ? CpuLevel::avx512_bf16 : CpuLevel::avx512_vnni;
#else
  return CpuLevel::portable;
#endif
}

/// Whether rows that are read in order come sooner if they are asked for ahead of time, line by line: so on Intel's
/// processors (measured on Sapphire Rapids); AMD's fetch by themselves, and being asked disturbs them (measured on Zen 4).
inline bool find_fetches_ahead() {
#if defined(__x86_64__) && defined(__GNUC__)
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(0, &a, &b, &c, &d) != 0 && b == 0x756e6547U;  // "Genu"
#else
  return false;
#endif
}

}  // namespace cpu_detail

/// The newest level that this processor and its system run.
inline CpuLevel best_level() {
  static const CpuLevel level = cpu_detail::find_best_level();
  return level;
}

/// Whether this processor wants to be asked ahead of time for rows that are read in order.
inline bool fetches_ahead() {
  static const bool ahead = cpu_detail::find_fetches_ahead();
  return ahead;
}

/// Whether this machine runs a level.
inline bool runs(CpuLevel level) { return level <= best_level(); }

}  // namespace TINYLLM_BUILD

}  // namespace tinyllm
