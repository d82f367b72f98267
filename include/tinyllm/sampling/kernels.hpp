// SPDX-License-Identifier: Apache-2.0
// The sampling kernels of every level, and the choice among them at run time.
//
//     const SamplingKernels& kernels = sampler_detail::sampling_kernels(best_level());
//
// Internal.
#pragma once

#include <tinyllm/core/cpu_level.hpp>
#include <tinyllm/core/simd_avx2.hpp>
#include <tinyllm/core/simd_avx512.hpp>
#include <tinyllm/core/simd_portable.hpp>
#include <tinyllm/core/simd_region.hpp>
#include <tinyllm/core/types.hpp>
#include <tinyllm/sampling/score_blocks.hpp>

#define TINYLLM_LEVEL portable
#include <tinyllm/sampling/sampling_kernels.hpp>
#undef TINYLLM_LEVEL

#if TINYLLM_X86_LEVELS
TINYLLM_TARGET_AVX2_BEGIN
#define TINYLLM_LEVEL avx2
#include <tinyllm/sampling/sampling_kernels.hpp>
#undef TINYLLM_LEVEL
TINYLLM_TARGET_END

TINYLLM_TARGET_AVX512_BEGIN
#define TINYLLM_LEVEL avx512
#include <tinyllm/sampling/sampling_kernels.hpp>
#undef TINYLLM_LEVEL
TINYLLM_TARGET_END
#endif

namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace sampler_detail {

/// Pre: this machine runs `level`
inline const SamplingKernels& sampling_kernels([[maybe_unused]] CpuLevel level) {
#if TINYLLM_X86_LEVELS
  if (level >= CpuLevel::avx512) return avx512::sampling::kernels;
  if (level == CpuLevel::avx2) return avx2::sampling::kernels;
#endif
  return portable::sampling::kernels;
}

}  // namespace sampler_detail
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
