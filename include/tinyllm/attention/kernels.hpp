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

#include <concepts>
#include <cstddef>
#include <cstdint>

#define TINYLLM_LEVEL portable
#include <tinyllm/attention/kernels_common.hpp>

#include <tinyllm/attention/kernels_float.hpp>

#include <tinyllm/attention/kernels_stream.hpp>

#include <tinyllm/attention/kernels_block.hpp>

#include <tinyllm/attention/int8_portable.hpp>

#include <tinyllm/attention/kernels_int8.hpp>
#undef TINYLLM_LEVEL

#if TINYLLM_X86_LEVELS
TINYLLM_TARGET_AVX2_BEGIN
#define TINYLLM_LEVEL avx2
#include <tinyllm/attention/kernels_common.hpp>

#include <tinyllm/attention/kernels_float.hpp>

#include <tinyllm/attention/kernels_stream.hpp>

#include <tinyllm/attention/kernels_block.hpp>
TINYLLM_TARGET_END

#include <tinyllm/attention/int8_avx2.hpp>

TINYLLM_TARGET_AVX2_BEGIN
#include <tinyllm/attention/kernels_int8.hpp>
#undef TINYLLM_LEVEL
TINYLLM_TARGET_END

TINYLLM_TARGET_AVX512_BEGIN
#define TINYLLM_LEVEL avx512
#include <tinyllm/attention/kernels_common.hpp>

#include <tinyllm/attention/kernels_float.hpp>

#include <tinyllm/attention/kernels_stream.hpp>

#include <tinyllm/attention/kernels_block.hpp>
#undef TINYLLM_LEVEL
TINYLLM_TARGET_END

// What the last two have beyond AVX-512 are products of int8 and of bfloat16 rows.
#include <tinyllm/attention/int8_vnni.hpp>

TINYLLM_TARGET_AVX512_VNNI_BEGIN
#define TINYLLM_LEVEL avx512_vnni
#include <tinyllm/attention/kernels_stream.hpp>

#include <tinyllm/attention/kernels_int8.hpp>
#undef TINYLLM_LEVEL
TINYLLM_TARGET_END

#include <tinyllm/attention/kernels_bf16.hpp>

TINYLLM_TARGET_AVX512_BF16_BEGIN
#define TINYLLM_LEVEL avx512_bf16
#include <tinyllm/attention/kernels_stream.hpp>
#undef TINYLLM_LEVEL
TINYLLM_TARGET_END

#endif

namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace attention_detail {

template <StorageType Dtype>
const AttentionKernels& attention_kernels([[maybe_unused]] CpuLevel level) {
  if constexpr (std::same_as<Dtype, std::int8_t>) {
#if TINYLLM_X86_LEVELS
    if (level >= CpuLevel::avx512_vnni) {
      static constexpr AttentionKernels dots{&avx512_vnni::stream<avx512_vnni::Int8Products>, nullptr, &avx512::fold, 0};
      return dots;
    }
    if (level == CpuLevel::avx512) {
      static constexpr AttentionKernels wide{&avx2::stream<avx2::Int8Products>, &avx512::block<std::int8_t>, &avx512::fold, 0};
      return wide;
    }
    if (level == CpuLevel::avx2) {
      static constexpr AttentionKernels table{&avx2::stream<avx2::Int8Products>, &avx2::block<std::int8_t>, &avx2::fold, 0};
      return table;
    }
#endif
    static constexpr AttentionKernels plain{&portable::stream<portable::Int8Products>, &portable::block<std::int8_t>,
                                            &portable::fold, 0};
    return plain;
  } else {
#if TINYLLM_X86_LEVELS
    if constexpr (std::same_as<Dtype, Eigen::bfloat16>) {
      if (level >= CpuLevel::avx512_bf16) {
        static constexpr AttentionKernels pairs{&avx512_bf16::stream<avx512_bf16::Bfloat16Products>, nullptr, &avx512::fold,
                                                avx512::width};
        return pairs;
      }
    }
    if (level >= CpuLevel::avx512) {
      static constexpr AttentionKernels wide{&avx512::stream<avx512::FloatProducts<Dtype>>, &avx512::block<Dtype>,
                                             &avx512::fold, avx512::splits_pairs<Dtype> ? avx512::width : 0};
      return wide;
    }
    if (level == CpuLevel::avx2) {
      static constexpr AttentionKernels table{&avx2::stream<avx2::FloatProducts<Dtype>>, &avx2::block<Dtype>, &avx2::fold,
                                              avx2::splits_pairs<Dtype> ? avx2::width : 0};
      return table;
    }
#endif
    static constexpr AttentionKernels plain{&portable::stream<portable::FloatProducts<Dtype>>, &portable::block<Dtype>,
                                            &portable::fold, 0};
    return plain;
  }
}

}  // namespace attention_detail
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
