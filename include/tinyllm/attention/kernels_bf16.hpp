// SPDX-License-Identifier: Apache-2.0
// Bf16Products: scores of bfloat16 keys by the processor's own products of bfloat16 pairs (AVX-512 BF16).
//
//     avx512_bf16::stream<avx512_bf16::Bf16Products>(job);
//
// Internal. Queries are split into a high and a low bfloat16, so that scores are as exact as float ones (about 2^-16);
// weighted sums are FloatProducts'. Subnormal numbers count as zero here, as the instruction has it.
#pragma once

#include <tinyllm/attention/int8_vnni.hpp>
#include <tinyllm/attention/job.hpp>
#include <tinyllm/core/simd_avx512.hpp>
#include <tinyllm/core/simd_region.hpp>
#include <tinyllm/core/types.hpp>

#include <cstdint>

#if TINYLLM_X86_LEVELS
#include <immintrin.h>

TINYLLM_TARGET_AVX512_BF16_BEGIN
namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace avx512_bf16 {
using namespace avx512;

struct Bf16Products {
  static constexpr Index row_bytes(Index d) { return 2 * d; }
  static Index tile_rows(Index d) { return attention_detail::tile_rows(d, row_bytes(d)); }
  static Index query_floats(Index d) { return attention_detail::packed_query(d); }

  /// Layout: [d / 32][high, low][4][64 bytes], each dword of a lane four times, as avx512_vnni::transpose orders the keys
  static void pack(const float* q, Index d, float scale, float* packed) {
    alignas(64) std::uint16_t high[32];
    alignas(64) std::uint16_t low[32];
    const Lanes scales = broadcast(scale);
    for (Index c = 0; c < d; c += 32) {
      alignas(64) float part[32] = {};
      __builtin_memcpy(part, q + c, static_cast<std::size_t>(d - c < 32 ? d - c : 32) * sizeof(float));
      for (Index i = 0; i < 32; i += 16) {
        const Lanes x = multiply(load(part + i), scales);
        Eigen::bfloat16* upper = reinterpret_cast<Eigen::bfloat16*>(high + i);
        store_stored(upper, x);
        store_stored(reinterpret_cast<Eigen::bfloat16*>(low + i), subtract(x, load_stored(upper)));
      }
      __m512i* out = reinterpret_cast<__m512i*>(packed) + c / 32 * 8;
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
    }
  }

  /// scores[g][i] = query g · key row + i, for G queries; up to 15 scores behind the last are overwritten.
  template <unsigned G>
  TINYLLM_INLINE static void scores(const AttentionJob& job, const StoredRun& run, Index row, Index n, const float* q,
                                    float* scores) {
    const std::uint16_t* keys = static_cast<const std::uint16_t*>(run.keys) + row * job.row;
    const Fetch fetched = fetch_with_keys(job.fetching, run, row, row_bytes(job.row));
    if (fetched.bytes == 0) {
      dots<G, false>(keys, n, job.row, job.d, q, scores, fetched);
    } else {
      dots<G, true>(keys, n, job.row, job.d, q, scores, fetched);
    }
  }

  template <unsigned G>
  using Tile = FloatProducts<Eigen::bfloat16>::Tile<G>;

 private:
  template <unsigned G, bool fetches>
  TINYLLM_INLINE static void dots(const std::uint16_t* keys, Index n, Index row, Index d, const float* q, float* scores,
                                  const Fetch& fetched) {
    const Index stride = query_floats(d);
    for (Index r = 0; r < n; r += 16) {
      __m512 quads[G][4];
      TINYLLM_UNROLL
      for (unsigned quad = 0; quad < 4; quad += 2) {
        // Two times four rows share each load of a query.
        const std::uint16_t* at[8];
        TINYLLM_UNROLL
        for (unsigned i = 0; i < 8; ++i) {
          at[i] = keys + smaller(r + quad * 4 + i, n - 1) * row;
          fetch<fetches>(fetched, r + quad * 4 + i);
        }
        __m512 high[G][2];
        __m512 low[G][2];
        TINYLLM_UNROLL
        for (unsigned g = 0; g < G; ++g) high[g][0] = high[g][1] = low[g][0] = low[g][1] = _mm512_setzero_ps();
        for (Index c = 0; c < d; c += 32) {
          __m512i x[8];
          TINYLLM_UNROLL
          for (unsigned i = 0; i < 8; ++i) {
            x[i] = d - c >= 32 ? _mm512_loadu_si512(at[i] + c)
                               : _mm512_maskz_loadu_epi16((__mmask32{1} << (d - c)) - 1U, at[i] + c);
          }
          __m512i t[8];
          avx512_vnni::transpose(x[0], x[1], x[2], x[3], t);
          avx512_vnni::transpose(x[4], x[5], x[6], x[7], t + 4);
          TINYLLM_UNROLL
          for (unsigned g = 0; g < G; ++g) {
            const __m512i* query = reinterpret_cast<const __m512i*>(q + g * stride) + c / 32 * 8;
            TINYLLM_UNROLL
            for (unsigned j = 0; j < 4; ++j) {
              const __m512bh upper = as_pairs(_mm512_loadu_si512(query + j));
              const __m512bh lower = as_pairs(_mm512_loadu_si512(query + 4 + j));
              TINYLLM_UNROLL
              for (unsigned k = 0; k < 2; ++k) {
                high[g][k] = _mm512_dpbf16_ps(high[g][k], as_pairs(t[4 * k + j]), upper);
                low[g][k] = _mm512_dpbf16_ps(low[g][k], as_pairs(t[4 * k + j]), lower);
                pin(high[g][k]);
                pin(low[g][k]);
              }
            }
          }
        }
        TINYLLM_UNROLL
        for (unsigned g = 0; g < G; ++g) {
          TINYLLM_UNROLL
          for (unsigned k = 0; k < 2; ++k) quads[g][quad + k] = _mm512_add_ps(high[g][k], low[g][k]);
        }
      }
      TINYLLM_UNROLL
      for (unsigned g = 0; g < G; ++g) {
        const __m512* a = quads[g];
        const __m512 x = _mm512_add_ps(_mm512_shuffle_f32x4(a[0], a[1], 0x44), _mm512_shuffle_f32x4(a[0], a[1], 0xee));
        const __m512 y = _mm512_add_ps(_mm512_shuffle_f32x4(a[2], a[3], 0x44), _mm512_shuffle_f32x4(a[2], a[3], 0xee));
        const __m512 sum = _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
        _mm512_storeu_ps(scores + g * attention_detail::score_stride + r, sum);
      }
    }
  }

  TINYLLM_INLINE static void pin(__m512& sum) { __asm__("" : "+v"(sum)); }  // as avx512_vnni::pin
  TINYLLM_INLINE static __m512bh as_pairs(__m512i bits) { return reinterpret_cast<__m512bh>(bits); }
};

}  // namespace avx512_bf16
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
TINYLLM_TARGET_END
#endif
