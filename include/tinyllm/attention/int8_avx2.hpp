// SPDX-License-Identifier: Apache-2.0
// Integer products of int8 rows with AVX2: bytes widen to 16 bits, so that two products and their sum fit 32.
//
// Internal: what kernels_int8.hpp needs of a level.
#pragma once

#include <tinyllm/attention/job.hpp>
#include <tinyllm/core/simd_avx2.hpp>
#include <tinyllm/core/simd_region.hpp>
#include <tinyllm/core/types.hpp>

#include <cstdint>

#if TINYLLM_X86_LEVELS
#include <immintrin.h>

TINYLLM_TARGET_AVX2_BEGIN
namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace avx2 {

/// Sixteen bytes of a row, of which n are there, the others zeros.
TINYLLM_INLINE __m128i load_bytes(const std::int8_t* row, Index n) {
  if (n >= 16) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row));
  alignas(16) std::int8_t bytes[16] = {};
  __builtin_memcpy(bytes, row, static_cast<std::size_t>(n));
  return _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
}

/// Floats that are integers as 16 bits each.
TINYLLM_INLINE __m256i to_words(const float* numbers) {
  const __m256i low = _mm256_cvtps_epi32(_mm256_loadu_ps(numbers));
  const __m256i high = _mm256_cvtps_epi32(_mm256_loadu_ps(numbers + 8));
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
}

/// Columns [c, c + 64) of a query, as integers in floats. Layout of packed: [d], 16 bits each
TINYLLM_INLINE float put_query(const float* rounded, float* packed, Index c) {
  __m256i* out = reinterpret_cast<__m256i*>(packed) + c / 16;
  for (Index i = 0; i < 4; ++i) _mm256_storeu_si256(out + i, to_words(rounded + 16 * i));
  return 0.0F;
}
TINYLLM_INLINE Lanes corrected(const std::int32_t* sums, Lanes) {
  return {_mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(sums)))};
}

/// sums[g][i] = query g · row i, for G queries; up to 3 sums behind the last are overwritten.
template <unsigned G, bool fetches, class F>
TINYLLM_INLINE void dots(const std::int8_t* keys, Index rows, Index d, const float* q, Index q_stride, std::int32_t* sums,
                         const F& fetched) {
  const Index whole = d / 16 * 16;
  for (Index r = 0; r < rows; r += 4) {
    __m256i part[4][G];
    TINYLLM_UNROLL
    for (unsigned i = 0; i < 4; i += 2) {
      // Two rows share each load of a query.
      const std::int8_t* a = keys + (r + i < rows ? r + i : rows - 1) * d;
      const std::int8_t* b = keys + (r + i + 1 < rows ? r + i + 1 : rows - 1) * d;
      fetch<fetches>(fetched, r + i);
      fetch<fetches>(fetched, r + i + 1);
      __m256i of_a[G];
      __m256i of_b[G];
      TINYLLM_UNROLL
      for (unsigned g = 0; g < G; ++g) of_a[g] = of_b[g] = _mm256_setzero_si256();
      const auto add = [&](__m128i a_bytes, __m128i b_bytes, Index c) {
        const __m256i x = _mm256_cvtepi8_epi16(a_bytes);
        const __m256i y = _mm256_cvtepi8_epi16(b_bytes);
        TINYLLM_UNROLL
        for (unsigned g = 0; g < G; ++g) {
          const __m256i query = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + g * q_stride) + c / 16);
          of_a[g] = _mm256_add_epi32(of_a[g], _mm256_madd_epi16(x, query));
          of_b[g] = _mm256_add_epi32(of_b[g], _mm256_madd_epi16(y, query));
        }
      };
      for (Index c = 0; c < whole; c += 16) {
        add(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + c)), _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + c)),
            c);
      }
      if (whole < d) add(load_bytes(a + whole, d - whole), load_bytes(b + whole, d - whole), whole);
      TINYLLM_UNROLL
      for (unsigned g = 0; g < G; ++g) {
        part[i][g] = of_a[g];
        part[i + 1][g] = of_b[g];
      }
    }
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) {
      const __m256i all =
          _mm256_hadd_epi32(_mm256_hadd_epi32(part[0][g], part[1][g]), _mm256_hadd_epi32(part[2][g], part[3][g]));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(sums + g * attention_detail::score_stride + r),
                       _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1)));
    }
  }
}

/// The weights of a tile's keys.
struct Weights {
  std::int16_t words[attention_detail::score_stride];
};

/// Weights [i, i + width), numbers in [0, 32767].
TINYLLM_INLINE void put_weights(Lanes numbers, Index i, Weights& weights) {
  const __m256i whole = _mm256_cvtps_epi32(numbers.v);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(weights.words + i), words);
}
/// Weights from i on become zeros.
TINYLLM_INLINE void clear_weights(Index i, Weights& weights) {
  for (; i < attention_detail::score_stride; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(weights.words + i), _mm_setzero_si128());
  }
}

/// sums[g][c] (+)= Σ weight · value, as integers that lie in float memory; the weights begin at `offset` of the tile.
template <unsigned G, bool fetches, class F>
TINYLLM_INLINE void value_sums(const std::int8_t* values, Index rows, Index d, const Weights* weights, Index offset,
                               float* sums, Index stride, bool fresh, F fetched) {
  for (Index c = 0; c < d; c += 16) {
    const auto what = fetched(c, d - c < 16 ? d - c : 16);
    __m256i low[G];
    __m256i high[G];
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) low[g] = high[g] = _mm256_setzero_si256();
    for (Index r = 0; r < rows; r += 2) {
      const std::int8_t* row = values + r * d + c;
      const bool pair = r + 1 < rows;
      fetch<fetches>(what, r);
      fetch<fetches>(what, r + 1);
      const __m256i a = _mm256_cvtepi8_epi16(load_bytes(row, d - c));
      const __m256i b = _mm256_cvtepi8_epi16(load_bytes(pair ? row + d : row, d - c));
      const __m256i first = _mm256_unpacklo_epi16(a, b);   // columns 0-3 and 8-11 of both rows
      const __m256i second = _mm256_unpackhi_epi16(a, b);  // columns 4-7 and 12-15
      TINYLLM_UNROLL
      for (unsigned g = 0; g < G; ++g) {
        std::uint32_t two;
        __builtin_memcpy(&two, weights[g].words + offset + r, 4);
        const __m256i w = _mm256_set1_epi32(static_cast<int>(pair ? two : two & 0xffffU));
        low[g] = _mm256_add_epi32(low[g], _mm256_madd_epi16(first, w));
        high[g] = _mm256_add_epi32(high[g], _mm256_madd_epi16(second, w));
      }
    }
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) {
      __m256i* to = reinterpret_cast<__m256i*>(sums + g * stride + c);
      const __m256i x = _mm256_permute2x128_si256(low[g], high[g], 0x20);
      const __m256i y = _mm256_permute2x128_si256(low[g], high[g], 0x31);
      _mm256_storeu_si256(to, fresh ? x : _mm256_add_epi32(x, _mm256_loadu_si256(to)));
      _mm256_storeu_si256(to + 1, fresh ? y : _mm256_add_epi32(y, _mm256_loadu_si256(to + 1)));
    }
  }
}

/// Integers that lie in float memory.
TINYLLM_INLINE Lanes to_float(const float* integers) {
  return {_mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(integers)))};
}

}  // namespace avx2
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
TINYLLM_TARGET_END
#endif
