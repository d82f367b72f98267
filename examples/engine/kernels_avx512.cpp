// SPDX-License-Identifier: Apache-2.0
#include "kernels.hpp"

#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/simd_avx512.hpp>
#include <tinyllm/core/simd_region.hpp>

#if TINYLLM_X86_LEVELS

#include <immintrin.h>

#include <cstring>

TINYLLM_TARGET_AVX512_VNNI_BEGIN
namespace engine {
namespace avx512 {
namespace {

using tinyllm::avx512::Lanes;

// Tokens of the largest tile.
inline constexpr Index most_tokens = 8;

struct WeightBytes {
  __m512i v;
};
TINYLLM_INLINE WeightBytes load_bytes(const std::byte* p) { return {_mm512_loadu_si512(p)}; }
TINYLLM_INLINE WeightBytes low_nibbles(WeightBytes w) { return {_mm512_and_si512(w.v, _mm512_set1_epi8(15))}; }
TINYLLM_INLINE WeightBytes next_nibble(WeightBytes w) { return {_mm512_srli_epi32(w.v, 4)}; }
TINYLLM_INLINE WeightBytes next_byte(WeightBytes w) { return {_mm512_srli_epi32(w.v, 8)}; }
TINYLLM_INLINE WeightBytes high_nibbles(WeightBytes w) { return low_nibbles(next_nibble(w)); }
TINYLLM_INLINE Lanes first_nibble(WeightBytes w) {
  // A permutation looks at the four lowest bits of each index only.
  const __m512 numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return {_mm512_permutexvar_ps(w.v, numbers)};
}
TINYLLM_INLINE Lanes first_byte(WeightBytes w) { return {_mm512_cvtepi32_ps(_mm512_and_si512(w.v, _mm512_set1_epi32(255)))}; }

TINYLLM_INLINE __m512i four_of(const std::int8_t* x) {
  std::int32_t bits;
  std::memcpy(&bits, x, sizeof bits);
  return _mm512_set1_epi32(bits);
}

struct IntSum {
  __m512i v;
};
using NibbleSum = IntSum;
using ByteSum = IntSum;
TINYLLM_INLINE IntSum no_nibbles() { return {_mm512_setzero_si512()}; }
TINYLLM_INLINE IntSum no_bytes(std::int32_t offset) { return {_mm512_set1_epi32(offset)}; }
TINYLLM_INLINE void add_nibbles(IntSum& sum, WeightBytes w, const std::int8_t* x) {
  sum.v = _mm512_dpbusd_epi32(sum.v, w.v, four_of(x));
}
TINYLLM_INLINE void add_bytes(IntSum& sum, WeightBytes w, const std::int8_t* x) { add_nibbles(sum, w, x); }
TINYLLM_INLINE IntSum both(IntSum a, IntSum b) { return {_mm512_add_epi32(a.v, b.v)}; }
TINYLLM_INLINE Lanes to_lanes(IntSum sum) { return {_mm512_cvtepi32_ps(sum.v)}; }
TINYLLM_INLINE void pin(IntSum&) {}

TINYLLM_INLINE Lanes divide(Lanes a, Lanes b) { return {_mm512_div_ps(a.v, b.v)}; }
TINYLLM_INLINE Lanes swap_pairs(Lanes a) { return {_mm512_permute_ps(a.v, 0xB1)}; }
TINYLLM_INLINE void store_int8(std::int8_t* to, Lanes x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x.v)));
}

}  // namespace
}  // namespace avx512
}  // namespace engine
#define ENGINE_LEVEL avx512
#include "kernels_text.hpp"

#include "kernels_rows_text.hpp"
TINYLLM_TARGET_END

namespace engine {

const Kernels* avx512_kernels() {
  static const Kernels table{"avx512_vnni",    tinyllm::best_level(), avx512::multiply_floats, avx512::multiply_quantized,
                             avx512::quantize, avx512::normalize,     avx512::rotate,          avx512::silu_multiply};
  return tinyllm::runs(tinyllm::CpuLevel::avx512_vnni) ? &table : nullptr;
}

}  // namespace engine

#else

namespace engine {

const Kernels* avx512_kernels() { return nullptr; }

}  // namespace engine

#endif
