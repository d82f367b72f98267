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

/// Keeps a sum in its register: without it g++ 12 reorders the additions and moves sums to memory.
TINYLLM_INLINE void pin(__m256i& sum) { __asm__("" : "+x"(sum)); }

/// Sixteen bytes of a row, of which n are there, the others zeros.
TINYLLM_INLINE __m128i load_bytes(const std::int8_t* row, Index n) {
  if (n >= 16) return _mm_loadu_si128(reinterpret_cast<const __m128i*>(row));
  alignas(16) std::int8_t bytes[16] = {};
  __builtin_memcpy(bytes, row, static_cast<std::size_t>(n));
  return _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
}

/// The first n of four floats, and zeros.
TINYLLM_INLINE __m128 load_four(const float* p, Index n) {
  if (n >= 4) return _mm_loadu_ps(p);
  return _mm_maskload_ps(p, _mm_cmpgt_epi32(_mm_set1_epi32(static_cast<int>(n)), _mm_setr_epi32(0, 1, 2, 3)));
}

/// Floats that are integers as 16 bits each.
TINYLLM_INLINE __m256i to_words(const float* numbers) {
  const __m256i low = _mm256_cvtps_epi32(_mm256_loadu_ps(numbers));
  const __m256i high = _mm256_cvtps_epi32(_mm256_loadu_ps(numbers + 8));
  return _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
}

/// Rows that `dots` takes at a time.
inline constexpr Index rows_of_dots = 4;
/// The largest integer of a query, and how many units it has.
inline constexpr float query_levels = 16319.0F;
inline constexpr Index query_blocks = 1;

/// Columns [c, c + 64) of a query, integers in floats. Layout of packed: [d], 16 bits each
TINYLLM_INLINE void put_query(const float* rounded, float* packed, Index c) {
  __m256i* out = reinterpret_cast<__m256i*>(packed) + c / 16;
  for (Index i = 0; i < 4; ++i) _mm256_storeu_si256(out + i, to_words(rounded + 16 * i));
}
TINYLLM_INLINE void put_units(const float* units, const float*, float* packed) { packed[0] = units[0]; }

/// sums[row][g] += query g · row for 16 columns of two rows, products added in pairs.
template <unsigned G>
TINYLLM_INLINE void add_columns(__m128i a, __m128i b, const float* q, Index q_stride, __m256i (*sums)[G]) {
  const __m256i x = _mm256_cvtepi8_epi16(a);
  const __m256i y = _mm256_cvtepi8_epi16(b);
  TINYLLM_UNROLL
  for (unsigned g = 0; g < G; ++g) {
    const __m256i part = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + g * q_stride));
    sums[0][g] = _mm256_add_epi32(sums[0][g], _mm256_madd_epi16(x, part));
    sums[1][g] = _mm256_add_epi32(sums[1][g], _mm256_madd_epi16(y, part));
    pin(sums[0][g]);
    pin(sums[1][g]);
  }
}

/// both[g] = the sums of two rows and query g, still in parts.
template <unsigned G>
TINYLLM_INLINE void two_rows(const std::int8_t* a, const std::int8_t* b, Index d, const float* q, Index q_stride,
                             __m256i* both) {
  __m256i sums[2][G];
  TINYLLM_UNROLL
  for (unsigned g = 0; g < G; ++g) sums[0][g] = sums[1][g] = _mm256_setzero_si256();
  Index c = 0;
  for (; c + 64 <= d; c += 64, q += 32) {
    TINYLLM_UNROLL
    for (Index i = 0; i < 4; ++i) {
      add_columns<G>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(a + c) + i),
                     _mm_loadu_si128(reinterpret_cast<const __m128i*>(b + c) + i), q + 8 * i, q_stride, sums);
    }
  }
  for (; c < d; c += 16, q += 8) add_columns<G>(load_bytes(a + c, d - c), load_bytes(b + c, d - c), q, q_stride, sums);
  TINYLLM_UNROLL
  for (unsigned g = 0; g < G; ++g) both[g] = _mm256_hadd_epi32(sums[0][g], sums[1][g]);
}

/// scores[g][i] = query g · row i times its scale, for G queries; up to 3 scores behind the last are overwritten.
template <unsigned G, bool fetches, class F>
TINYLLM_INLINE void dots(const std::int8_t* keys, const float* scales, Index rows, Index d, const float* q, Index q_stride,
                         float* scores, const F& fetched) {
  for (Index r = 0; r < rows; r += 4) {
    const std::int8_t* row[4];
    TINYLLM_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      row[i] = keys + (r + i < rows ? r + i : rows - 1) * d;
    }
    fetch<fetches>(fetched, r / rows_of_dots);
    __m256i first[G];
    __m256i second[G];
    two_rows<G>(row[0], row[1], d, q + 32, q_stride, first);
    two_rows<G>(row[2], row[3], d, q + 32, q_stride, second);
    const __m128 scale = load_four(scales + r, rows - r);
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) {
      const __m256i all = _mm256_hadd_epi32(first[g], second[g]);
      const __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
      _mm_storeu_ps(scores + g * attention_detail::score_stride + r,
                    _mm_mul_ps(_mm_mul_ps(_mm_cvtepi32_ps(sum), _mm_set1_ps(q[g * q_stride])), scale));
    }
  }
}

/// The weights of a tile's keys, numbers in [0, weight_levels].
inline constexpr float weight_levels = 32767.0F;
struct Weights {
  std::int16_t words[attention_detail::score_stride];
};

/// Weights [i, i + width), rounded.
TINYLLM_INLINE void put_weights(Lanes numbers, Index i, Weights& weights) {
  const __m256i whole = _mm256_cvtps_epi32(numbers.v);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(weights.words + i), words);
}
/// sums[g] += Σ weight · value for 16 columns of two rows.
template <unsigned G>
TINYLLM_INLINE void add_two_rows(__m128i a_bytes, __m128i b_bytes, const std::uint32_t* weights, __m256i (*sums)[2]) {
  const __m256i low = _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a_bytes, b_bytes));
  const __m256i high = _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a_bytes, b_bytes));
  TINYLLM_UNROLL
  for (unsigned g = 0; g < G; ++g) {
    const __m256i two = _mm256_set1_epi32(static_cast<int>(weights[g]));
    sums[g][0] = _mm256_add_epi32(sums[g][0], _mm256_madd_epi16(low, two));
    sums[g][1] = _mm256_add_epi32(sums[g][1], _mm256_madd_epi16(high, two));
    pin(sums[g][0]);
    pin(sums[g][1]);
  }
}

/// sums[g][c] (+)= Σ weight · value, as integers that lie in float memory; the weights begin at `offset` of the tile.
template <unsigned G, bool fetches, class F>
TINYLLM_INLINE void value_sums(const std::int8_t* values, Index rows, Index d, const Weights* weights, Index offset,
                               float* sums, Index stride, bool fresh, F fetched) {
  for (Index c = 0; c < d; c += 16) {
    const auto what = fetched(c, 2);
    const Index columns = d - c;
    __m256i part[G][2];
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) part[g][0] = part[g][1] = _mm256_setzero_si256();
    const std::int8_t* row = values + c;
    std::uint32_t two[G];
    Index r = 0;
    for (; columns >= 16 && r + 2 <= rows; r += 2, row += 2 * d) {
      fetch<fetches>(what, r / 2);
      TINYLLM_UNROLL
      for (unsigned g = 0; g < G; ++g) __builtin_memcpy(&two[g], weights[g].words + offset + r, 4);
      add_two_rows<G>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(row)),
                      _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + d)), two, part);
    }
    for (; r < rows; r += 2, row += 2 * d) {
      for (unsigned g = 0; g < G; ++g) __builtin_memcpy(&two[g], weights[g].words + offset + r, 4);
      const __m128i second = r + 1 < rows ? load_bytes(row + d, columns) : _mm_setzero_si128();
      add_two_rows<G>(load_bytes(row, columns), second, two, part);
    }
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) {
      TINYLLM_UNROLL
      for (unsigned k = 0; k < 2; ++k) {
        __m256i* to = reinterpret_cast<__m256i*>(sums + g * stride + c) + k;
        _mm256_storeu_si256(to, fresh ? part[g][k] : _mm256_add_epi32(part[g][k], _mm256_loadu_si256(to)));
      }
    }
  }
}

/// Integers that lie in float memory.
TINYLLM_INLINE Lanes to_float(const void* integers) {
  return {_mm256_cvtepi32_ps(_mm256_loadu_si256(static_cast<const __m256i*>(integers)))};
}

}  // namespace avx2
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
TINYLLM_TARGET_END
#endif
