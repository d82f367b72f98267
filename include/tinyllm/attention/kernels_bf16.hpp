// SPDX-License-Identifier: Apache-2.0
// Bfloat16Products: scores and weighted sums over bfloat16 rows by the processor's own products of bfloat16 pairs.
//
//     avx512_bf16::stream<avx512_bf16::Bfloat16Products>(job);
//
// Internal. Queries and weights are rounded to bfloat16, sums are float. Scores are scaled once they are sums, so that a query
// of bfloat16 numbers stays exact. The two products of a pair are added one after the other, each rounded as a fused
// multiply-add is (Intel, Intrinsics Guide, _mm512_dpbf16_ps: the odd one first; subnormal numbers count as zero).
#pragma once

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

using Bfloat16 = Eigen::bfloat16;

/// sum += the products of pairs.
TINYLLM_INLINE Lanes add_pairs(Lanes sum, __m512i a, __m512i b) {
  return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b))};
}
/// The first n of 32 elements, n any positive number, and zeros.
TINYLLM_INLINE __m512i load_part(const Bfloat16* p, Index n) {
  return n >= pair_width ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi16((__mmask32{1} << n) - 1U, p);
}

/// scores[g][row] = q[g] · key row, for G queries, four rows at a time. `Width` is d where it is known when compiling, else 0.
/// Up to three scores behind the last are overwritten.
template <unsigned G, unsigned Width, bool fetches>
inline void dot_pairs(const Bfloat16* keys, Index rows, Index stride, Index d, const float* q, Index q_stride, float* scores,
                      const Fetch& fetched) {
  for (Index r = 0; r < rows; r += 4) {
    fetch<fetches>(fetched, r / 4);
    const Bfloat16* row[4];
    Lanes sums[4][G];
    TINYLLM_UNROLL
    for (unsigned i = 0; i < 4; ++i) {
      row[i] = keys + smaller(r + i, rows - 1) * (Width != 0 ? Index{Width} : stride);
      TINYLLM_UNROLL
      for (unsigned g = 0; g < G; ++g) sums[i][g] = zero();
    }
    const auto add = [&](Index c) TINYLLM_INLINE_LAMBDA {
      __m512i x[4];
      TINYLLM_UNROLL
      for (unsigned i = 0; i < 4; ++i) x[i] = Width != 0 ? _mm512_loadu_si512(row[i] + c) : load_part(row[i] + c, d - c);
      TINYLLM_UNROLL
      for (unsigned g = 0; g < G; ++g) {
        const __m512i query = _mm512_loadu_si512(q + g * q_stride + c / 2);
        TINYLLM_UNROLL
        for (unsigned i = 0; i < 4; ++i) sums[i][g] = add_pairs(sums[i][g], x[i], query);
      }
    };
    if constexpr (Width != 0) {
      TINYLLM_UNROLL
      for (unsigned c = 0; c < Width; c += pair_width) add(c);
    } else {
      for (Index c = 0; c < d; c += pair_width) add(c);
    }
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) {
      store_sums(sums[0][g], sums[1][g], sums[2][g], sums[3][g], scores + g * attention_detail::score_stride + r);
    }
  }
}

/// Sums of 32 columns are kept as FloatProducts orders them, the even columns first; products of unpacked rows come in another
/// order, first the columns with c % 8 < 4. In an order's 32 lanes 16 and more are those of the second vector.
TINYLLM_INLINE void load_unpacked(const float* p, Lanes* sums) {
  const Lanes even = load(p);
  const Lanes odd = load(p + width);
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
  const __m512i high = _mm512_setr_epi32(2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31);
  sums[0] = {_mm512_permutex2var_ps(even.v, low, odd.v)};
  sums[1] = {_mm512_permutex2var_ps(even.v, high, odd.v)};
}
TINYLLM_INLINE void store_unpacked(float* p, const Lanes* sums) {
  const __m512i even = _mm512_setr_epi32(0, 2, 16, 18, 4, 6, 20, 22, 8, 10, 24, 26, 12, 14, 28, 30);
  const __m512i odd = _mm512_setr_epi32(1, 3, 17, 19, 5, 7, 21, 23, 9, 11, 25, 27, 13, 15, 29, 31);
  store(p, {_mm512_permutex2var_ps(sums[0].v, even, sums[1].v)});
  store(p + width, {_mm512_permutex2var_ps(sums[0].v, odd, sums[1].v)});
}

/// out[g] += Σ weight(g, k) · row k for k in [first, end) and N times 32 columns; of the last 32 there may be fewer if N is 1.
/// `row_of(k)` is where a row lies.
/// Shape: weights [G, weight_stride], each two in turn, the second first
template <unsigned G, unsigned N, bool fetches, class RowOf>
TINYLLM_INLINE void add_row_pairs(RowOf row_of, Index first, Index end, Index columns, const std::uint16_t* weights,
                                  Index weight_stride, float* out, Index out_stride, const Fetch& fetched) {
  Lanes sum[G][2 * N];
  TINYLLM_UNROLL
  for (unsigned g = 0; g < G; ++g) {
    TINYLLM_UNROLL
    for (unsigned i = 0; i < N; ++i) load_unpacked(out + g * out_stride + i * pair_width, sum[g] + 2 * i);
  }
  // What is added for a row that is not there is −0: every sum stays as it is, a −0 too.
  const __m512i absent = _mm512_set1_epi16(static_cast<short>(0x8000));
  // Rows k and k + 1 for an even k. Of the two products the one in the upper half is added first: that of row k.
  const auto add = [&](Index k, bool early, bool late) TINYLLM_INLINE_LAMBDA {
    __m512i x[2 * N];
    TINYLLM_UNROLL
    for (unsigned i = 0; i < N; ++i) {
      const Index c = i * pair_width;
      const Index n = N > 1 ? pair_width : columns;
      const __m512i upper_half = early ? load_part(row_of(k) + c, n) : absent;
      const __m512i lower_half = late ? load_part(row_of(k + 1) + c, n) : absent;
      x[2 * i] = _mm512_unpacklo_epi16(lower_half, upper_half);
      x[2 * i + 1] = _mm512_unpackhi_epi16(lower_half, upper_half);
    }
    fetch<fetches>(fetched, (k + 1 - first) / 2);
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) {
      std::uint32_t pair;
      __builtin_memcpy(&pair, weights + g * weight_stride + k, sizeof pair);
      const __m512i factors = _mm512_set1_epi32(static_cast<int>(pair));
      TINYLLM_UNROLL
      for (unsigned i = 0; i < 2 * N; ++i) sum[g][i] = add_pairs(sum[g][i], x[i], factors);
    }
  };
  Index k = first;
  if (k % 2 != 0) {
    add(k - 1, false, true);
    ++k;
  }
  for (; k + 2 <= end; k += 2) add(k, true, true);
  if (k < end) add(k, true, false);
  TINYLLM_UNROLL
  for (unsigned g = 0; g < G; ++g) {
    TINYLLM_UNROLL
    for (unsigned i = 0; i < N; ++i) store_unpacked(out + g * out_stride + i * pair_width, sum[g] + 2 * i);
  }
}

/// Sixteen weights as bfloat16, each two in turn, the second first.
TINYLLM_INLINE void put_weights(std::uint16_t* out, Lanes weights) {
  store_stored(reinterpret_cast<Bfloat16*>(out), weights);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_rol_epi32(load_bits(out), 16));
}

/// The products of `stream`.
struct Bfloat16Products {
  using InFloat = FloatProducts<Bfloat16>;
  static constexpr bool scores_ahead = InFloat::scores_ahead;
  static constexpr Index row_bytes(Index d) { return InFloat::row_bytes(d); }
  static Index tile_rows(Index d) { return InFloat::tile_rows(d); }
  static Index query_floats(Index d) { return attention_detail::padded(d) / 2; }

  static void pack(const float* q, Index d, float, float* packed) {
    for (Index c = 0; c < query_floats(d); ++c) packed[c] = 0.0F;
    Bfloat16* out = reinterpret_cast<Bfloat16*>(packed);
    for (Index c = 0; c < d; c += width) {
      alignas(64) float part[width] = {};
      for (Index i = 0; i < smaller(d - c, width); ++i) part[i] = q[c + i];
      store_stored(out + c, load(part));
    }
  }

  /// scores[g][i] = query g · key row + i, for G queries.
  template <unsigned G>
  TINYLLM_INLINE static void scores(const AttentionJob& job, const StoredRun& run, Index row, Index n, const float* q,
                                    float* scores) {
    const Index d = job.d;
    const Bfloat16* keys = static_cast<const Bfloat16*>(run.keys) + row * job.row;
    const Fetch fetched = fetch_with_keys(job.fetching, run, row, row_bytes(job.row), 4);
    with_width(d, job.row, [&]<unsigned Width>() {
      if (fetched.bytes == 0) {
        dot_pairs<G, Width, false>(keys, n, job.row, d, q, query_floats(d), scores, fetched);
      } else {
        dot_pairs<G, Width, true>(keys, n, job.row, d, q, query_floats(d), scores, fetched);
      }
    });
    const Lanes scale = broadcast(job.scale);
    for (Index i = 0; i < n; i += width) {
      TINYLLM_UNROLL
      for (unsigned g = 0; g < G; ++g) {
        float* at = scores + g * attention_detail::score_stride + i;
        store(at, multiply(load(at), scale));
      }
    }
  }

  /// As those of FloatProducts, with weights that are rounded once they are made.
  template <unsigned G>
  class Tile {
   public:
    TINYLLM_INLINE Tile(const AttentionJob& job, const StoredRun* run, Index tile, const Index* first, const Index* end,
                        float* scores)
        : tile_(job, run, tile, first, end, scores), next_(job, run, tile, first[0], end[G - 1], row_bytes(job.row)) {}

    TINYLLM_INLINE void soften(float* maximum, float* sums, float* factors) {
      tile_.soften(maximum, sums, factors, next_.with_weights(width));
      for (Index i = 0; i < tile_.end[G - 1]; i += width) {
        TINYLLM_UNROLL
        for (unsigned g = 0; g < G; ++g) {
          put_weights(weights_[g] + i, load(tile_.weights + g * weight_stride + i));
        }
      }
    }

    /// sums[g] += Σ weight · value
    TINYLLM_INLINE void add_values(float* sums, float*) const {
      const AttentionJob& job = tile_.job;
      const Index d = job.d_value;
      const Index stride = attention_detail::padded(d);
      const auto add_run = [&]<unsigned Count>(unsigned g, const StoredRun& at, Index position, Index n) {
        const Bfloat16* values = static_cast<const Bfloat16*>(at.values);
        const Index before = at.first - tile_.tile;  // what a row's index in the tile has more than in the run
        const Index first = position - tile_.tile;
        const auto add = [&]<unsigned N>(Index c, Index columns) {
          const auto row_of = [&](Index k) { return values + (k - before) * job.row + c; };
          const Fetch fetched = next_.with_values(job, at, position, n, row_bytes(c), row_bytes(columns), 2);
          float* out = sums + g * stride + c;
          if (fetched.bytes == 0) {
            add_row_pairs<Count, N, false>(row_of, first, first + n, columns, weights_[g], weight_stride, out, stride, fetched);
          } else {
            add_row_pairs<Count, N, true>(row_of, first, first + n, columns, weights_[g], weight_stride, out, stride, fetched);
          }
        };
        Index c = 0;
        for (; c + 64 <= d; c += 64) add.template operator()<2>(c, 64);
        for (; c < d; c += pair_width) add.template operator()<1>(c, smaller(d - c, pair_width));
      };
      for_seen_runs<G>(tile_.run, tile_.tile, tile_.first, tile_.end, add_run);
    }

   private:
    static constexpr Index weight_stride = attention_detail::score_stride;

    InFloat::Tile<G> tile_;
    NextKeys next_;
    alignas(64) std::uint16_t weights_[G][weight_stride];
  };
};

}  // namespace avx512_bf16
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
TINYLLM_TARGET_END
#endif
