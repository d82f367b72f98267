// SPDX-License-Identifier: Apache-2.0
// Eight float lanes of AVX2 with fused multiply-add and half-precision conversion.
//
//     avx2::Lanes sum = avx2::fma(avx2::load(a), avx2::load(b), avx2::zero());       // in an AVX2 region
//
// Internal. The same functions as simd_portable.hpp, which says what they do.
#pragma once

#include <tinyllm/core/simd_region.hpp>
#include <tinyllm/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>

#if TINYLLM_X86_LEVELS
#include <immintrin.h>

TINYLLM_TARGET_AVX2_BEGIN
namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace avx2 {

struct Lanes {
  __m256 v;
};
inline constexpr Index width = 8;
inline constexpr int n_registers = 16;

template <class Dtype>
inline constexpr bool splits_pairs = false;
template <>
inline constexpr bool splits_pairs<Eigen::bfloat16> = true;

TINYLLM_INLINE Lanes zero() { return {_mm256_setzero_ps()}; }
TINYLLM_INLINE Lanes broadcast(float x) { return {_mm256_set1_ps(x)}; }
TINYLLM_INLINE Lanes load(const float* p) { return {_mm256_loadu_ps(p)}; }
TINYLLM_INLINE void store(float* p, Lanes x) { _mm256_storeu_ps(p, x.v); }
TINYLLM_INLINE Lanes add(Lanes a, Lanes b) { return {_mm256_add_ps(a.v, b.v)}; }
TINYLLM_INLINE Lanes subtract(Lanes a, Lanes b) { return {_mm256_sub_ps(a.v, b.v)}; }
TINYLLM_INLINE Lanes multiply(Lanes a, Lanes b) { return {_mm256_mul_ps(a.v, b.v)}; }
TINYLLM_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
TINYLLM_INLINE Lanes maximum(Lanes a, Lanes b) { return {_mm256_max_ps(a.v, b.v)}; }

TINYLLM_INLINE float horizontal_sum(Lanes a) {
  const __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 y = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
TINYLLM_INLINE float horizontal_maximum(Lanes a) {
  const __m128 x = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 y = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
TINYLLM_INLINE void store_sums(Lanes a, Lanes b, Lanes c, Lanes d, float* out) {
  const __m256 ab = _mm256_hadd_ps(a.v, b.v);
  const __m256 cd = _mm256_hadd_ps(c.v, d.v);
  const __m256 all = _mm256_hadd_ps(ab, cd);
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}

TINYLLM_INLINE Lanes exp2(Lanes x) {
  const Lanes lowest = broadcast(-125.0F);
  const Lanes magic = broadcast(12583039.0F);
  const Lanes clamped = maximum(lowest, x);
  const Lanes shifted = add(clamped, magic);
  const Lanes f = subtract(clamped, subtract(shifted, magic));
  Lanes p = broadcast(1.535336188319500e-4F);
  p = fma(p, f, broadcast(1.339887440266574e-3F));
  p = fma(p, f, broadcast(9.618437357674640e-3F));
  p = fma(p, f, broadcast(5.550332471162809e-2F));
  p = fma(p, f, broadcast(2.402264791363012e-1F));
  p = fma(p, f, broadcast(6.931472028550421e-1F));
  p = fma(p, f, broadcast(1.0F));
  const __m256 power = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted.v), 23));
  return {_mm256_andnot_ps(_mm256_cmp_ps(x.v, lowest.v, _CMP_LT_OQ), _mm256_mul_ps(p.v, power))};
}

TINYLLM_INLINE Lanes load_stored(const float* p) { return load(p); }
TINYLLM_INLINE Lanes load_stored(const Eigen::half* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
TINYLLM_INLINE Lanes load_stored(const Eigen::bfloat16* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}

TINYLLM_INLINE Lanes load_stored(const std::int8_t* p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}

TINYLLM_INLINE void load_pair(const float* p, Lanes& a, Lanes& b) {
  a = load(p);
  b = load(p + width);
}
TINYLLM_INLINE void load_pair(const Eigen::half* p, Lanes& a, Lanes& b) {
  a = load_stored(p);
  b = load_stored(p + width);
}
TINYLLM_INLINE void load_pair(const Eigen::bfloat16* p, Lanes& a, Lanes& b) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  a = {_mm256_castsi256_ps(_mm256_slli_epi32(bits, 16))};
  b = {_mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000U))))};
}
template <class Dtype>
TINYLLM_INLINE void load_pair_part(const Dtype* p, Index n, Lanes& a, Lanes& b) {
  alignas(32) unsigned char bytes[2 * sizeof(Dtype) * static_cast<std::size_t>(width)] = {};
  std::memcpy(bytes, p, static_cast<std::size_t>(n) * sizeof(Dtype));
  load_pair(reinterpret_cast<const Dtype*>(bytes), a, b);
}

TINYLLM_INLINE void store_stored(float* p, Lanes x) { store(p, x); }
TINYLLM_INLINE void store_stored(Eigen::half* p, Lanes x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
TINYLLM_INLINE void store_stored(Eigen::bfloat16* p, Lanes x) {
  const __m256i bits = _mm256_castps_si256(x.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i no_number = _mm256_castps_si256(_mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, no_number), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
TINYLLM_INLINE void store_stored(std::int8_t* p, Lanes x) {
  const __m256i whole = _mm256_cvtps_epi32(x.v);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(words, words));
}
TINYLLM_INLINE Lanes absolute(Lanes x) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0F), x.v)}; }
TINYLLM_INLINE bool any_above(Lanes a, Lanes b) { return _mm256_movemask_ps(_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)) != 0; }
TINYLLM_INLINE std::size_t count_finite_from(Lanes x, std::uint32_t least) {
  const __m256i magnitude = _mm256_and_si256(_mm256_castps_si256(x.v), _mm256_set1_epi32(0x7fffffff));
  const __m256i large = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(static_cast<int>(least - 1)));
  const __m256i finite = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f800000), magnitude);
  const int mask = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_and_si256(large, finite)));
  return mask == 0 ? 0 : static_cast<std::size_t>(__builtin_popcount(static_cast<unsigned>(mask)));
}

TINYLLM_INLINE Lanes product(Lanes a, Lanes b) {
  Lanes ab = {_mm256_mul_ps(a.v, b.v)};
  __asm__("" : "+x"(ab.v));
  return ab;
}
TINYLLM_INLINE Lanes add_at_least(Lanes sum, Lanes x, Lanes bound, Lanes y) {
  return {_mm256_add_ps(sum.v, _mm256_and_ps(_mm256_cmp_ps(x.v, bound.v, _CMP_GE_OQ), y.v))};
}
TINYLLM_INLINE unsigned bits_at_least(Lanes x, Lanes bound) {
  return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(x.v, bound.v, _CMP_GE_OQ)));
}
TINYLLM_INLINE Lanes times_power(Lanes x, Lanes shifted) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(shifted.v), 23);
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x.v), exponent))};
}

}  // namespace avx2
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
TINYLLM_TARGET_END
#endif
