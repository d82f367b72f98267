// SPDX-License-Identifier: Apache-2.0
#include "kernels.hpp"

#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/simd_avx2.hpp>
#include <tinyllm/core/simd_region.hpp>

#if TINYLLM_X86_LEVELS

#include <immintrin.h>

#include <cstring>

TINYLLM_TARGET_AVX2_BEGIN
namespace engine {
namespace avx2 {
namespace {

using tinyllm::avx2::Lanes;

// Tokens of the largest tile: their sums and what is multiplied fit sixteen registers.
inline constexpr Index most_tokens = 4;

struct WeightBytes {
  __m256i v;
};
TINYLLM_INLINE WeightBytes load_bytes(const std::byte* p) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))}; }
TINYLLM_INLINE WeightBytes low_nibbles(WeightBytes w) { return {_mm256_and_si256(w.v, _mm256_set1_epi8(15))}; }
TINYLLM_INLINE WeightBytes next_nibble(WeightBytes w) { return {_mm256_srli_epi32(w.v, 4)}; }
TINYLLM_INLINE WeightBytes next_byte(WeightBytes w) { return {_mm256_srli_epi32(w.v, 8)}; }
TINYLLM_INLINE WeightBytes high_nibbles(WeightBytes w) { return low_nibbles(next_nibble(w)); }
TINYLLM_INLINE Lanes first_nibble(WeightBytes w) { return {_mm256_cvtepi32_ps(_mm256_and_si256(w.v, _mm256_set1_epi32(15)))}; }
TINYLLM_INLINE Lanes first_byte(WeightBytes w) { return {_mm256_cvtepi32_ps(_mm256_and_si256(w.v, _mm256_set1_epi32(255)))}; }

TINYLLM_INLINE __m256i four_of(const std::int8_t* x) {
  std::int32_t bits;
  std::memcpy(&bits, x, sizeof bits);
  return _mm256_set1_epi32(bits);
}

// Sixteen products of nibbles and activations, at most 15 · 127 each, fit sixteen bits: widened once a block.
struct NibbleSum {
  __m256i v;
};
TINYLLM_INLINE NibbleSum no_nibbles() { return {_mm256_setzero_si256()}; }
TINYLLM_INLINE void add_nibbles(NibbleSum& sum, WeightBytes w, const std::int8_t* x) {
  sum.v = _mm256_add_epi16(sum.v, _mm256_maddubs_epi16(w.v, four_of(x)));
}
TINYLLM_INLINE Lanes to_lanes(NibbleSum sum) { return {_mm256_cvtepi32_ps(_mm256_madd_epi16(sum.v, _mm256_set1_epi16(1)))}; }

// Two products of bytes, at most 128 · 127 each once the sign is the activation's, fit sixteen bits as well, no more.
struct ByteSum {
  __m256i v;
};
TINYLLM_INLINE ByteSum no_bytes(std::int32_t) { return {_mm256_setzero_si256()}; }
TINYLLM_INLINE void add_bytes(ByteSum& sum, WeightBytes w, const std::int8_t* x) {
  const __m256i weights = _mm256_xor_si256(w.v, _mm256_set1_epi8(-128));
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(four_of(x), weights));
  sum.v = _mm256_add_epi32(sum.v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
TINYLLM_INLINE ByteSum both(ByteSum a, ByteSum b) { return {_mm256_add_epi32(a.v, b.v)}; }
TINYLLM_INLINE Lanes to_lanes(ByteSum sum) { return {_mm256_cvtepi32_ps(sum.v)}; }

// g++ keeps the sums of a tile in registers only where it cannot put off adding to them.
template <class Sum>
TINYLLM_INLINE void pin(Sum& sum) {
  __asm__("" : "+x"(sum.v));
}

TINYLLM_INLINE Lanes divide(Lanes a, Lanes b) { return {_mm256_div_ps(a.v, b.v)}; }
TINYLLM_INLINE Lanes swap_pairs(Lanes a) { return {_mm256_permute_ps(a.v, 0xB1)}; }
TINYLLM_INLINE void store_int8(std::int8_t* to, Lanes x) {
  const __m256i wide = _mm256_cvtps_epi32(x.v);
  const __m128i shorts = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(shorts, shorts));
}

}  // namespace
}  // namespace avx2
}  // namespace engine
#define ENGINE_LEVEL avx2
#include "kernels_text.hpp"

#include "kernels_rows_text.hpp"
TINYLLM_TARGET_END

namespace engine {

const Kernels* avx2_kernels() {
  static constexpr Kernels table{"avx2",         tinyllm::CpuLevel::avx2, avx2::multiply_floats, avx2::multiply_quantized,
                                 avx2::quantize, avx2::normalize,         avx2::rotate,          avx2::silu_multiply};
  return tinyllm::runs(tinyllm::CpuLevel::avx2) ? &table : nullptr;
}

}  // namespace engine

#else

namespace engine {

const Kernels* avx2_kernels() { return nullptr; }

}  // namespace engine

#endif
