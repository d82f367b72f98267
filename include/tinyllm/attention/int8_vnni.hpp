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

/// Rows that `dots` takes at a time.
inline constexpr Index rows_of_dots = 8;
/// The largest integer of a query, and how many units it has: one for each 128-bit lane.
inline constexpr float query_levels = 127.0F;
inline constexpr Index query_blocks = 4;

/// Columns [c, c + 64) of a query, integers in floats.
/// Layout of packed: [d / 64][4][64 bytes], each dword of a lane four times, as `transpose` orders the keys
TINYLLM_INLINE void put_query(const float* rounded, float* packed, Index c) {
  alignas(64) std::int8_t bytes[64];
  for (Index i = 0; i < 64; i += width) store_stored(bytes + i, load(rounded + i));
  __m512i* out = reinterpret_cast<__m512i*>(packed) + c / 64 * 4;
  const __m512i all = _mm512_load_si512(bytes);
  _mm512_storeu_si512(out, _mm512_shuffle_epi32(all, _MM_PERM_AAAA));
  _mm512_storeu_si512(out + 1, _mm512_shuffle_epi32(all, _MM_PERM_BBBB));
  _mm512_storeu_si512(out + 2, _mm512_shuffle_epi32(all, _MM_PERM_CCCC));
  _mm512_storeu_si512(out + 3, _mm512_shuffle_epi32(all, _MM_PERM_DDDD));
}
/// The lanes' units, and what each lane's sums begin with: the keys go in with 128 added to each, to be unsigned.
TINYLLM_INLINE void put_units(const float* units, const float* sums, float* packed) {
  for (Index i = 0; i < 16; ++i) {
    packed[i] = units[i / 4];
    const std::int32_t first = -128 * static_cast<std::int32_t>(sums[i / 4]);
    __builtin_memcpy(packed + 16 + i, &first, sizeof first);
  }
}

/// Products of two times four rows, quad by quad; behind the last row they are repeated.
template <unsigned G, bool whole, bool fetches, class F>
TINYLLM_INLINE void add_eight_rows(const std::int8_t* keys, Index first, Index rows, Index d, const float* q, Index q_stride,
                                   __m512i (*sums)[2], const F& fetched) {
  const __m512i flip = _mm512_set1_epi8(-128);
  const std::int8_t* row[8];
  TINYLLM_UNROLL
  for (unsigned i = 0; i < 8; ++i) {
    row[i] = keys + (whole || first + i < rows ? first + i : rows - 1) * d;
  }
  fetch<fetches>(fetched, first / rows_of_dots);
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
      const __m512i* query = reinterpret_cast<const __m512i*>(q + g * q_stride + 32) + c / 64 * 4;
      TINYLLM_UNROLL
      for (unsigned j = 0; j < 4; ++j) {
        const __m512i part = _mm512_loadu_si512(query + j);
        TINYLLM_UNROLL
        for (unsigned k = 0; k < 2; ++k) {
          sums[g][k] = _mm512_dpbusd_epi32(sums[g][k], t[4 * k + j], part);
          pin(sums[g][k]);
        }
      }
    }
  }
}

/// scores[g][i] = query g · row i times its scale, for G queries; up to 15 scores behind the last are overwritten.
template <unsigned G, bool fetches, class F>
TINYLLM_INLINE void dots(const std::int8_t* keys, const float* scales, Index rows, Index d, const float* q, Index q_stride,
                         float* scores, const F& fetched) {
  for (Index r = 0; r < rows; r += 16) {
    __m512i quads[2][G][2];
    TINYLLM_UNROLL
    for (unsigned half = 0; half < 2; ++half) {
      TINYLLM_UNROLL
      for (unsigned g = 0; g < G; ++g) quads[half][g][0] = quads[half][g][1] = _mm512_loadu_si512(q + g * q_stride + 16);
      if (r + 16 <= rows) {
        add_eight_rows<G, true, fetches>(keys, r + 8 * half, rows, d, q, q_stride, quads[half], fetched);
      } else {
        add_eight_rows<G, false, fetches>(keys, r + 8 * half, rows, d, q, q_stride, quads[half], fetched);
      }
    }
    const __m512 scale = _mm512_maskz_loadu_ps(first_lanes(rows - r), scales + r);
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) {
      const __m512 unit = _mm512_loadu_ps(q + g * q_stride);
      const __m512 a = _mm512_mul_ps(_mm512_cvtepi32_ps(quads[0][g][0]), unit);
      const __m512 b = _mm512_mul_ps(_mm512_cvtepi32_ps(quads[0][g][1]), unit);
      const __m512 c = _mm512_mul_ps(_mm512_cvtepi32_ps(quads[1][g][0]), unit);
      const __m512 e = _mm512_mul_ps(_mm512_cvtepi32_ps(quads[1][g][1]), unit);
      const __m512 x = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
      const __m512 y = _mm512_add_ps(_mm512_shuffle_f32x4(c, e, 0x44), _mm512_shuffle_f32x4(c, e, 0xee));
      const __m512 sum = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
      _mm512_storeu_ps(scores + g * attention_detail::score_stride + r, _mm512_mul_ps(sum, scale));
    }
  }
}

/// The weights of a tile's keys, numbers in [0, weight_levels].
inline constexpr float weight_levels = 255.0F;
struct Weights {
  std::uint8_t bytes[attention_detail::score_stride];
};

/// Weights [i, i + width), rounded.
TINYLLM_INLINE void put_weights(Lanes numbers, Index i, Weights& weights) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(weights.bytes + i), _mm512_cvtusepi32_epi8(_mm512_cvtps_epi32(numbers.v)));
}

/// sums[g] += Σ weight · value for four rows of 64 columns, in the order of two rounds of unpacking.
template <unsigned G>
TINYLLM_INLINE void add_four_rows(const __m512i* x, const std::uint32_t* weights, __m512i (*sums)[4]) {
  const __m512i ab_low = _mm512_unpacklo_epi8(x[0], x[1]);
  const __m512i ab_high = _mm512_unpackhi_epi8(x[0], x[1]);
  const __m512i cd_low = _mm512_unpacklo_epi8(x[2], x[3]);
  const __m512i cd_high = _mm512_unpackhi_epi8(x[2], x[3]);
  const __m512i columns[4] = {_mm512_unpacklo_epi16(ab_low, cd_low), _mm512_unpackhi_epi16(ab_low, cd_low),
                              _mm512_unpacklo_epi16(ab_high, cd_high), _mm512_unpackhi_epi16(ab_high, cd_high)};
  TINYLLM_UNROLL
  for (unsigned g = 0; g < G; ++g) {
    const __m512i four = _mm512_set1_epi32(static_cast<int>(weights[g]));
    TINYLLM_UNROLL
    for (unsigned k = 0; k < 4; ++k) {
      sums[g][k] = _mm512_dpbusd_epi32(sums[g][k], four, columns[k]);
      pin(sums[g][k]);
    }
  }
}

/// sums[g][c] (+)= Σ weight · value, as integers that lie in float memory; the weights begin at `offset` of the tile.
template <unsigned G, bool fetches, class F>
TINYLLM_INLINE void value_sums(const std::int8_t* values, Index rows, Index d, const Weights* weights, Index offset,
                               float* sums, Index stride, bool fresh, F fetched) {
  for (Index c = 0; c < d; c += 64) {
    const __mmask64 mask = first_bytes(d - c);
    const auto what = fetched(c, 4);
    __m512i part[G][4];
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) {
      TINYLLM_UNROLL
      for (unsigned k = 0; k < 4; ++k) part[g][k] = _mm512_setzero_si512();
    }
    const std::int8_t* row = values + c;
    std::uint32_t four[G];
    Index r = 0;
    for (; r + 4 <= rows; r += 4, row += 4 * d) {
      __m512i x[4];
      TINYLLM_UNROLL
      for (unsigned i = 0; i < 4; ++i) {
        x[i] = _mm512_maskz_loadu_epi8(mask, row + i * d);
      }
      fetch<fetches>(what, r / 4);
      TINYLLM_UNROLL
      for (unsigned g = 0; g < G; ++g) __builtin_memcpy(&four[g], weights[g].bytes + offset + r, 4);
      add_four_rows<G>(x, four, part);
    }
    if (r < rows) {
      __m512i x[4];
      for (unsigned i = 0; i < 4; ++i) {
        x[i] = r + i < rows ? _mm512_maskz_loadu_epi8(mask, row + i * d) : _mm512_setzero_si512();
      }
      for (unsigned g = 0; g < G; ++g) __builtin_memcpy(&four[g], weights[g].bytes + offset + r, 4);
      add_four_rows<G>(x, four, part);
    }
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
TINYLLM_INLINE Lanes to_float(const void* integers) { return {_mm512_cvtepi32_ps(_mm512_loadu_si512(integers))}; }

}  // namespace avx512_vnni
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
TINYLLM_TARGET_END
#endif
