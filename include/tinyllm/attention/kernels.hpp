// SPDX-License-Identifier: Apache-2.0
// The attention kernels of every level, and the choice among them.
//
//     const AttentionKernels& kernels = attention_detail::attention_kernels<Eigen::half>(best_level());
//
// Internal. The text of the kernels is compiled once for each level, in its own region and namespace (simd_region.hpp).
#pragma once

#include <tinyllm/attention/job.hpp>
#include <tinyllm/core/cpu_level.hpp>
#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/simd_avx2.hpp>
#include <tinyllm/core/simd_avx512.hpp>
#include <tinyllm/core/simd_portable.hpp>
#include <tinyllm/core/simd_region.hpp>
#include <tinyllm/core/types.hpp>

#include <cstddef>

#define TINYLLM_LEVEL portable
#include <tinyllm/attention/kernels_common.hpp>

#include <tinyllm/attention/kernels_stream.hpp>

#include <tinyllm/attention/kernels_block.hpp>
#undef TINYLLM_LEVEL

#if TINYLLM_X86_LEVELS
TINYLLM_TARGET_AVX2_BEGIN
#define TINYLLM_LEVEL avx2
#include <tinyllm/attention/kernels_common.hpp>

#include <tinyllm/attention/kernels_stream.hpp>

#include <tinyllm/attention/kernels_block.hpp>
#undef TINYLLM_LEVEL
TINYLLM_TARGET_END

TINYLLM_TARGET_AVX512_BEGIN
#define TINYLLM_LEVEL avx512
#include <tinyllm/attention/kernels_common.hpp>

#include <tinyllm/attention/kernels_stream.hpp>

#include <tinyllm/attention/kernels_block.hpp>
#undef TINYLLM_LEVEL
TINYLLM_TARGET_END
#endif

namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace attention_detail {

/// The kernels for a storage type.
/// Pre: this machine runs `level`
template <StorageType Dtype>
inline const AttentionKernels& attention_kernels([[maybe_unused]] CpuLevel level) {
#if TINYLLM_X86_LEVELS
  if (level >= CpuLevel::avx512) {
    static constexpr AttentionKernels wide = avx512::kernels_of<Dtype>();
    return wide;
  }
  if (level == CpuLevel::avx2) {
    static constexpr AttentionKernels table = avx2::kernels_of<Dtype>();
    return table;
  }
#endif
  static constexpr AttentionKernels plain = portable::kernels_of<Dtype>();
  return plain;
}

}  // namespace attention_detail
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
