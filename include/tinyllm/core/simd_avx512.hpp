// SPDX-License-Identifier: Apache-2.0
// Sixteen float lanes of AVX-512.
//
//     avx512::Lanes sum = avx512::fma(avx512::load(a), avx512::load(b), avx512::zero());     // in an AVX-512 region
//
// Internal. The same functions as simd_portable.hpp, which says what they do.
#pragma once

#include <tinyllm/core/simd_region.hpp>
#include <tinyllm/core/types.hpp>

#include <cstddef>
#include <cstdint>

#if TINYLLM_X86_LEVELS
#include <immintrin.h>

TINYLLM_TARGET_AVX512_BEGIN
namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace avx512 {

struct Lanes {
  __m512 v;
};
inline constexpr Index width = 16;
inline constexpr int n_registers = 32;

template <class Dtype>
inline constexpr bool splits_pairs = false;
template <>
inline constexpr bool splits_pairs<Eigen::bfloat16> = true;

TINYLLM_INLINE Lanes zero() { return {_mm512_setzero_ps()}; }
TINYLLM_INLINE Lanes broadcast(float x) { return {_mm512_set1_ps(x)}; }
TINYLLM_INLINE Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
TINYLLM_INLINE void store(float* p, Lanes x) { _mm512_storeu_ps(p, x.v); }
TINYLLM_INLINE Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
TINYLLM_INLINE Lanes subtract(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
TINYLLM_INLINE Lanes multiply(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
TINYLLM_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TINYLLM_INLINE Lanes maximum(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }

TINYLLM_INLINE __m256 lower(__m512 v) { return _mm512_castps512_ps256(v); }
TINYLLM_INLINE __m256 upper(__m512 v) { return _mm512_extractf32x8_ps(v, 1); }

TINYLLM_INLINE float horizontal_sum(Lanes a) {
  const __m256 w = _mm256_add_ps(lower(a.v), upper(a.v));
  const __m128 x = _mm_add_ps(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1));
  const __m128 y = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
TINYLLM_INLINE float horizontal_maximum(Lanes a) {
  const __m256 w = _mm256_max_ps(lower(a.v), upper(a.v));
  const __m128 x = _mm_max_ps(_mm256_castps256_ps128(w), _mm256_extractf128_ps(w, 1));
  const __m128 y = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
TINYLLM_INLINE void store_sums(Lanes a, Lanes b, Lanes c, Lanes d, float* out) {
  const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a.v, b.v), _mm512_unpackhi_ps(a.v, b.v));
  const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c.v, d.v), _mm512_unpackhi_ps(c.v, d.v));
  const __m512 all = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
  const __m256 half = _mm256_add_ps(lower(all), upper(all));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

TINYLLM_INLINE Lanes exp2(Lanes x) {
  const Lanes clamped = maximum(broadcast(-200.0F), x);  // far enough below for 0
  const __m512 whole = _mm512_roundscale_ps(clamped.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Lanes f = {_mm512_sub_ps(clamped.v, whole)};
  Lanes p = broadcast(1.535336188319500e-4F);
  p = fma(p, f, broadcast(1.339887440266574e-3F));
  p = fma(p, f, broadcast(9.618437357674640e-3F));
  p = fma(p, f, broadcast(5.550332471162809e-2F));
  p = fma(p, f, broadcast(2.402264791363012e-1F));
  p = fma(p, f, broadcast(6.931472028550421e-1F));
  p = fma(p, f, broadcast(1.0F));
  return {_mm512_scalef_ps(p.v, whole)};
}

TINYLLM_INLINE __m256i load_bits(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

TINYLLM_INLINE Lanes load_stored(const float* p) { return load(p); }
TINYLLM_INLINE Lanes load_stored(const Eigen::half* p) { return {_mm512_cvtph_ps(load_bits(p))}; }
TINYLLM_INLINE Lanes load_stored(const Eigen::bfloat16* p) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_bits(p)), 16))};
}

TINYLLM_INLINE Lanes load_stored(const std::int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

TINYLLM_INLINE void split_pairs(__m512i bits, Lanes& even, Lanes& odd) {
  even = {_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16))};
  odd = {_mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000U))))};
}

TINYLLM_INLINE void load_pair(const float* p, Lanes& a, Lanes& b) {
  a = load(p);
  b = load(p + width);
}
TINYLLM_INLINE void load_pair(const Eigen::half* p, Lanes& a, Lanes& b) {
  a = load_stored(p);
  b = load_stored(p + width);
}
TINYLLM_INLINE void load_pair(const Eigen::bfloat16* p, Lanes& a, Lanes& b) { split_pairs(_mm512_loadu_si512(p), a, b); }

/// A mask of the first n of 16 lanes, n any number.
TINYLLM_INLINE __mmask16 first_lanes(Index n) {
  return static_cast<__mmask16>(n <= 0 ? 0U : n >= 16 ? 0xffffU : (1U << n) - 1U);
}
TINYLLM_INLINE void load_pair_part(const float* p, Index n, Lanes& a, Lanes& b) {
  a = {_mm512_maskz_loadu_ps(first_lanes(n), p)};
  b = {_mm512_maskz_loadu_ps(first_lanes(n - width), p + width)};
}
TINYLLM_INLINE void load_pair_part(const Eigen::half* p, Index n, Lanes& a, Lanes& b) {
  a = {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p))};
  b = {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n - width), p + width))};
}
TINYLLM_INLINE void load_pair_part(const Eigen::bfloat16* p, Index n, Lanes& a, Lanes& b) {
  split_pairs(_mm512_maskz_loadu_epi16((__mmask32{1} << n) - 1U, p), a, b);
}

TINYLLM_INLINE void store_stored(float* p, Lanes x) { store(p, x); }
TINYLLM_INLINE void store_stored(Eigen::half* p, Lanes x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_maskz_cvtps_ph(static_cast<__mmask16>(0xffffU), x.v,
                                                                           _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
TINYLLM_INLINE void store_stored(Eigen::bfloat16* p, Lanes x) {
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const __mmask16 no_number = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  const __m512i high = _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, no_number, quiet), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(high));
}
TINYLLM_INLINE void store_stored(std::int8_t* p, Lanes x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x.v)));
}
TINYLLM_INLINE Lanes absolute(Lanes x) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0F), x.v)}; }
TINYLLM_INLINE bool any_above(Lanes a, Lanes b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ) != 0; }
TINYLLM_INLINE std::size_t count_finite_from(Lanes x, std::uint32_t least) {
  const __m512i magnitude = _mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x7fffffff));
  const __mmask16 large = _mm512_cmpge_epi32_mask(magnitude, _mm512_set1_epi32(static_cast<int>(least)));
  const __mmask16 mask = _mm512_mask_cmplt_epi32_mask(large, magnitude, _mm512_set1_epi32(0x7f800000));
  return mask == 0 ? 0 : static_cast<std::size_t>(__builtin_popcount(mask));
}

TINYLLM_INLINE Lanes product(Lanes a, Lanes b) {
  Lanes ab = {_mm512_mul_ps(a.v, b.v)};
  __asm__("" : "+v"(ab.v));
  return ab;
}
TINYLLM_INLINE Lanes add_at_least(Lanes sum, Lanes x, Lanes bound, Lanes y) {
  return {_mm512_mask_add_ps(sum.v, _mm512_cmp_ps_mask(x.v, bound.v, _CMP_GE_OQ), sum.v, y.v)};
}
TINYLLM_INLINE unsigned bits_at_least(Lanes x, Lanes bound) { return _mm512_cmp_ps_mask(x.v, bound.v, _CMP_GE_OQ); }
TINYLLM_INLINE Lanes times_power(Lanes x, Lanes shifted) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x.v), exponent))};
}

}  // namespace avx512
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
TINYLLM_TARGET_END
#endif
