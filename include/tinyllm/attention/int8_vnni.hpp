// SPDX-License-Identifier: Apache-2.0
// Integer products of int8 rows with AVX-512 VNNI.
//
// Internal: what kernels_int8.hpp needs of a level. A 15-bit integer is two bytes, high · 128 + low for queries (signed) and
// high · 256 + low for weights (unsigned), as the processor multiplies unsigned bytes with signed ones.
#pragma once

#include <tinyllm/attention/job.hpp>
#include <tinyllm/core/simd_avx512.hpp>
#include <tinyllm/core/simd_region.hpp>
#include <tinyllm/core/types.hpp>

#include <cstdint>

#if TINYLLM_X86_LEVELS
#include <immintrin.h>

TINYLLM_TARGET_AVX512_VNNI_BEGIN
namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace avx512_vnni {
using namespace avx512;

/// Keeps a sum in its register: without it g++ 12 moves sums about after every step.
TINYLLM_INLINE void pin(__m512i& sum) { __asm__("" : "+v"(sum)); }

/// A mask of the first n of 64 bytes, n any number.
TINYLLM_INLINE __mmask64 first_bytes(Index n) { return n >= 64 ? ~__mmask64{0} : (__mmask64{1} << n) - 1U; }

/// Four rows a, b, c, d of 16 dwords become four vectors: vector j holds dword j of each 128-bit lane, a b c d side by side.
TINYLLM_INLINE void transpose(__m512i a, __m512i b, __m512i c, __m512i d, __m512i* out) {
  const __m512i ab_low = _mm512_unpacklo_epi32(a, b);
  const __m512i cd_low = _mm512_unpacklo_epi32(c, d);
  const __m512i ab_high = _mm512_unpackhi_epi32(a, b);
  const __m512i cd_high = _mm512_unpackhi_epi32(c, d);
  out[0] = _mm512_unpacklo_epi64(ab_low, cd_low);
  out[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
  out[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
  out[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}

/// Columns [c, c + 64) of a query, as integers in floats. Returns what `corrected` needs of them.
/// Layout of packed: [d / 64][high, low][4][64 bytes], each dword of a lane four times, as `transpose` orders the keys
TINYLLM_INLINE float put_query(const float* rounded, float* packed, Index c) {
  alignas(64) std::int8_t high[64];
  alignas(64) std::int8_t low[64];
  std::int32_t sum = 0;
  for (Index i = 0; i < 64; i += 16) {
    const __m512i whole = _mm512_cvtps_epi32(_mm512_loadu_ps(rounded + i));
    const __m512i upper = _mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(64)), 7);
    const __m512i lower = _mm512_sub_epi32(whole, _mm512_slli_epi32(upper, 7));
    _mm_store_si128(reinterpret_cast<__m128i*>(high + i), _mm512_cvtepi32_epi8(upper));
    _mm_store_si128(reinterpret_cast<__m128i*>(low + i), _mm512_cvtepi32_epi8(lower));
    for (Index k = 0; k < 16; ++k) sum += high[i + k] * 128 + low[i + k];
  }
  __m512i* out = reinterpret_cast<__m512i*>(packed) + c / 64 * 8;
  const __m512i h = _mm512_load_si512(high);
  const __m512i l = _mm512_load_si512(low);
  _mm512_storeu_si512(out, _mm512_shuffle_epi32(h, _MM_PERM_AAAA));
  _mm512_storeu_si512(out + 1, _mm512_shuffle_epi32(h, _MM_PERM_BBBB));
  _mm512_storeu_si512(out + 2, _mm512_shuffle_epi32(h, _MM_PERM_CCCC));
  _mm512_storeu_si512(out + 3, _mm512_shuffle_epi32(h, _MM_PERM_DDDD));
  _mm512_storeu_si512(out + 4, _mm512_shuffle_epi32(l, _MM_PERM_AAAA));
  _mm512_storeu_si512(out + 5, _mm512_shuffle_epi32(l, _MM_PERM_BBBB));
  _mm512_storeu_si512(out + 6, _mm512_shuffle_epi32(l, _MM_PERM_CCCC));
  _mm512_storeu_si512(out + 7, _mm512_shuffle_epi32(l, _MM_PERM_DDDD));
  return static_cast<float>(sum);  // below 2^24, so exact
}

/// The keys went in with 128 added to each, to be unsigned; this takes 128 · Σ query off again.
TINYLLM_INLINE Lanes corrected(const std::int32_t* sums, Lanes query_sum) {
  const __m512i extra = _mm512_slli_epi32(_mm512_cvtps_epi32(query_sum.v), 7);
  return {_mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(sums), extra))};
}

/// sums[g][i] = query g · (row i + 128), for G queries; up to 15 sums behind the last are overwritten.
template <unsigned G, bool fetches, class F>
TINYLLM_INLINE void dots(const std::int8_t* keys, Index rows, Index d, const float* q, Index q_stride, std::int32_t* sums,
                         const F& fetched) {
  const __m512i flip = _mm512_set1_epi8(-128);
  for (Index r = 0; r < rows; r += 16) {
    __m512i quads[G][4];
    TINYLLM_UNROLL
    for (unsigned quad = 0; quad < 4; quad += 2) {
      // Two times four rows share each load of a query.
      const std::int8_t* row[8];
      TINYLLM_UNROLL
      for (unsigned i = 0; i < 8; ++i) {
        const Index at = r + quad * 4 + i;
        row[i] = keys + (at < rows ? at : rows - 1) * d;
        fetch<fetches>(fetched, at);
      }
      __m512i high[G][2];
      __m512i low[G][2];
      TINYLLM_UNROLL
      for (unsigned g = 0; g < G; ++g) high[g][0] = high[g][1] = low[g][0] = low[g][1] = _mm512_setzero_si512();
      for (Index c = 0; c < d; c += 64) {
        __m512i x[8];
        TINYLLM_UNROLL
        for (unsigned i = 0; i < 8; ++i) {
          const __m512i bytes =
              d - c >= 64 ? _mm512_loadu_si512(row[i] + c) : _mm512_maskz_loadu_epi8(first_bytes(d - c), row[i] + c);
          x[i] = _mm512_xor_si512(bytes, flip);
        }
        __m512i t[8];
        transpose(x[0], x[1], x[2], x[3], t);
        transpose(x[4], x[5], x[6], x[7], t + 4);
        TINYLLM_UNROLL
        for (unsigned g = 0; g < G; ++g) {
          const __m512i* query = reinterpret_cast<const __m512i*>(q + g * q_stride) + c / 64 * 8;
          TINYLLM_UNROLL
          for (unsigned j = 0; j < 4; ++j) {
            const __m512i upper = _mm512_loadu_si512(query + j);
            const __m512i lower = _mm512_loadu_si512(query + 4 + j);
            TINYLLM_UNROLL
            for (unsigned k = 0; k < 2; ++k) {
              high[g][k] = _mm512_dpbusd_epi32(high[g][k], t[4 * k + j], upper);
              low[g][k] = _mm512_dpbusd_epi32(low[g][k], t[4 * k + j], lower);
              pin(high[g][k]);
              pin(low[g][k]);
            }
          }
        }
      }
      TINYLLM_UNROLL
      for (unsigned g = 0; g < G; ++g) {
        TINYLLM_UNROLL
        for (unsigned k = 0; k < 2; ++k) quads[g][quad + k] = _mm512_add_epi32(_mm512_slli_epi32(high[g][k], 7), low[g][k]);
      }
    }
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) {
      const __m512i* a = quads[g];
      const __m512i x = _mm512_add_epi32(_mm512_shuffle_i64x2(a[0], a[1], 0x44), _mm512_shuffle_i64x2(a[0], a[1], 0xee));
      const __m512i y = _mm512_add_epi32(_mm512_shuffle_i64x2(a[2], a[3], 0x44), _mm512_shuffle_i64x2(a[2], a[3], 0xee));
      const __m512i sum = _mm512_add_epi32(_mm512_shuffle_i64x2(x, y, 0x88), _mm512_shuffle_i64x2(x, y, 0xdd));
      _mm512_storeu_si512(sums + g * attention_detail::score_stride + r, sum);
    }
  }
}

/// The weights of a tile's keys.
struct Weights {
  std::uint8_t high[attention_detail::score_stride];
  std::uint8_t low[attention_detail::score_stride];
};

/// Weights [i, i + width), numbers in [0, 32767].
TINYLLM_INLINE void put_weights(Lanes numbers, Index i, Weights& weights) {
  const __m512i whole = _mm512_cvtps_epi32(numbers.v);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(weights.high + i), _mm512_cvtepi32_epi8(_mm512_srli_epi32(whole, 8)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(weights.low + i), _mm512_cvtepi32_epi8(whole));
}
/// Weights from i on become zeros.
TINYLLM_INLINE void clear_weights(Index i, Weights& weights) {
  for (; i < attention_detail::score_stride; i += 16) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(weights.high + i), _mm_setzero_si128());
    _mm_storeu_si128(reinterpret_cast<__m128i*>(weights.low + i), _mm_setzero_si128());
  }
}

/// Half of 64 columns of four rows, byte by byte side by side: columns 0-7 (or 8-15) of each lane.
template <bool upper>
TINYLLM_INLINE void interleave(const __m512i* rows, __m512i& first, __m512i& second) {
  const __m512i ab = upper ? _mm512_unpackhi_epi8(rows[0], rows[1]) : _mm512_unpacklo_epi8(rows[0], rows[1]);
  const __m512i cd = upper ? _mm512_unpackhi_epi8(rows[2], rows[3]) : _mm512_unpacklo_epi8(rows[2], rows[3]);
  first = _mm512_unpacklo_epi16(ab, cd);
  second = _mm512_unpackhi_epi16(ab, cd);
}

/// sums[g][c] (+)= Σ weight · value for half of the columns [c, c + 64), as integers in the order of `interleave`.
template <unsigned G, bool upper, bool fetches, class F>
TINYLLM_INLINE void half_sums(const std::int8_t* values, Index rows, Index d, Index columns, const Weights* weights,
                              Index offset, __m512i (*sums)[4], const F& fetched) {
  __m512i high[G][2];
  __m512i low[G][2];
  TINYLLM_UNROLL
  for (unsigned g = 0; g < G; ++g) {
    TINYLLM_UNROLL
    for (unsigned k = 0; k < 2; ++k) high[g][k] = low[g][k] = _mm512_setzero_si512();
  }
  for (Index r = 0; r < rows; r += 4) {
    __m512i x[4];
    TINYLLM_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      const std::int8_t* row = values + (r + i < rows ? r + i : rows - 1) * d;
      x[i] = columns >= 64 ? _mm512_loadu_si512(row) : _mm512_maskz_loadu_epi8(first_bytes(columns), row);
      fetch<fetches && !upper>(fetched, r + i);
    }
    __m512i first;
    __m512i second;
    interleave<upper>(x, first, second);
    // Behind the last row weights count for nothing.
    const std::uint32_t seen = rows - r >= 4 ? ~std::uint32_t{0} : (std::uint32_t{1} << (8 * (rows - r))) - 1U;
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) {
      std::uint32_t h;
      std::uint32_t l;
      __builtin_memcpy(&h, weights[g].high + offset + r, 4);
      __builtin_memcpy(&l, weights[g].low + offset + r, 4);
      const __m512i hs = _mm512_set1_epi32(static_cast<int>(h & seen));
      const __m512i ls = _mm512_set1_epi32(static_cast<int>(l & seen));
      high[g][0] = _mm512_dpbusd_epi32(high[g][0], hs, first);
      high[g][1] = _mm512_dpbusd_epi32(high[g][1], hs, second);
      low[g][0] = _mm512_dpbusd_epi32(low[g][0], ls, first);
      low[g][1] = _mm512_dpbusd_epi32(low[g][1], ls, second);
      TINYLLM_UNROLL
      for (unsigned k = 0; k < 2; ++k) {
        pin(high[g][k]);
        pin(low[g][k]);
      }
    }
  }
  TINYLLM_UNROLL
  for (unsigned g = 0; g < G; ++g) {
    TINYLLM_UNROLL
    for (unsigned k = 0; k < 2; ++k) {
      sums[g][(upper ? 2 : 0) + k] = _mm512_add_epi32(_mm512_slli_epi32(high[g][k], 8), low[g][k]);
    }
  }
}

/// sums[g][c] (+)= Σ weight · value, as integers that lie in float memory; the weights begin at `offset` of the tile.
template <unsigned G, bool fetches, class F>
TINYLLM_INLINE void value_sums(const std::int8_t* values, Index rows, Index d, const Weights* weights, Index offset,
                               float* sums, Index stride, bool fresh, F fetched) {
  for (Index c = 0; c < d; c += 64) {
    const Index columns = d - c < 64 ? d - c : 64;
    __m512i part[G][4];
    const auto what = fetched(c, columns);
    half_sums<G, false, fetches>(values + c, rows, d, columns, weights, offset, part, what);
    half_sums<G, true, fetches>(values + c, rows, d, columns, weights, offset, part, what);
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) {
      const __m512i* a = part[g];
      const __m512i x = _mm512_shuffle_i64x2(a[0], a[1], 0x44);
      const __m512i y = _mm512_shuffle_i64x2(a[2], a[3], 0x44);
      const __m512i z = _mm512_shuffle_i64x2(a[0], a[1], 0xee);
      const __m512i w = _mm512_shuffle_i64x2(a[2], a[3], 0xee);
      const __m512i in_order[4] = {_mm512_shuffle_i64x2(x, y, 0x88), _mm512_shuffle_i64x2(x, y, 0xdd),
                                   _mm512_shuffle_i64x2(z, w, 0x88), _mm512_shuffle_i64x2(z, w, 0xdd)};
      TINYLLM_UNROLL
      for (unsigned k = 0; k < 4; ++k) {
        float* to = sums + g * stride + c + 16 * k;
        _mm512_storeu_si512(to, fresh ? in_order[k] : _mm512_add_epi32(in_order[k], _mm512_loadu_si512(to)));
      }
    }
  }
}

/// Integers that lie in float memory.
TINYLLM_INLINE Lanes to_float(const float* integers) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(integers))}; }

}  // namespace avx512_vnni
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
TINYLLM_TARGET_END
#endif
