// SPDX-License-Identifier: Apache-2.0
// Passes over a vocabulary's scores, once for each level.
//
//     #define TINYLLM_LEVEL avx2
//     TINYLLM_TARGET_AVX2_BEGIN
//     #include <tinyllm/sampling/sampling_kernels.hpp>
//
// Internal, and empty unless TINYLLM_LEVEL is defined: kernels.hpp includes this text once for each level, inside the
// level's region, so there is no #pragma once here. score_blocks.hpp says what each of them does.
#ifdef TINYLLM_LEVEL
namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace TINYLLM_LEVEL {
namespace sampling {

using sampler_detail::block;
using sampler_detail::group;
using sampler_detail::Highest;
using sampler_detail::n_bounds;
using sampler_detail::Prefix;
using sampler_detail::ScoreBlocks;
using sampler_detail::Softmax;
using sampler_detail::Sums;

/// Registers of a group.
inline constexpr Index parts = group / width;

TINYLLM_INLINE const float* block_of(const ScoreBlocks& x, Index b) { return b < x.whole ? x.scores + b * block : x.tail; }

/// The sum of a group's lanes: those 8 apart first, then 4, 2 and 1.
TINYLLM_INLINE float sum_of_lanes(Lanes* part) {
  TINYLLM_UNROLL
  for (Index n = parts / 2; n > 0; n /= 2) {
    for (Index i = 0; i < n; ++i) part[i] = add(part[i], part[i + n]);
  }
  return horizontal_sum(part[0]);
}

/// Registers that exponentials are worked out in at a time: their steps alternate, so that none waits for the one before.
inline constexpr Index together = 4;
inline constexpr Index stride = together * width;

/// w = e^t for -87.1 <= t <= 0, to about one unit in the last place; anything for other t.
TINYLLM_INLINE void exponentials(const Lanes* t, Lanes* w) {
  const Lanes magic = broadcast(12582912.0F);  // 1.5 · 2^23: adding it rounds to an integer in the low bits
  Lanes shifted[together];
  Lanes r[together];
  TINYLLM_UNROLL
  for (Index j = 0; j < together; ++j) shifted[j] = add(product(t[j], broadcast(1.44269504F)), magic);
  // ln 2 in two parts, of which the first has so few digits that its product with an exponent is exact.
  TINYLLM_UNROLL
  for (Index j = 0; j < together; ++j) r[j] = subtract(t[j], product(subtract(shifted[j], magic), broadcast(0.693359375F)));
  TINYLLM_UNROLL
  for (Index j = 0; j < together; ++j) r[j] = add(r[j], product(subtract(shifted[j], magic), broadcast(2.1219444e-4F)));
  TINYLLM_UNROLL
  for (Index j = 0; j < together; ++j) w[j] = add(product(r[j], broadcast(1.3926251e-3F)), broadcast(8.3632329e-3F));
  TINYLLM_UNROLL
  for (Index j = 0; j < together; ++j) w[j] = add(product(w[j], r[j]), broadcast(4.1666554e-2F));
  TINYLLM_UNROLL
  for (Index j = 0; j < together; ++j) w[j] = add(product(w[j], r[j]), broadcast(1.6666577e-1F));
  TINYLLM_UNROLL
  for (Index j = 0; j < together; ++j) w[j] = add(product(w[j], r[j]), broadcast(0.5F));
  TINYLLM_UNROLL
  for (Index j = 0; j < together; ++j) w[j] = add(product(w[j], product(r[j], r[j])), r[j]);
  TINYLLM_UNROLL
  for (Index j = 0; j < together; ++j) w[j] = times_power(add(w[j], broadcast(1.0F)), shifted[j]);
}

TINYLLM_INLINE Lanes exponent_of(Lanes x, const Softmax& softmax) {
  return product(subtract(x, broadcast(softmax.highest)), broadcast(softmax.scale));
}

inline Highest highest(const ScoreBlocks& x, float* maxima) {
  Highest top = {-__builtin_inff(), 0};
  for (Index b = 0; b < x.count; ++b) {
    const float* p = block_of(x, b);
    Lanes high[4];
    TINYLLM_UNROLL
    for (Index j = 0; j < 4; ++j) high[j] = broadcast(-__builtin_inff());
    for (Index i = 0; i < block; i += 4 * width) {
      TINYLLM_UNROLL
      for (Index j = 0; j < 4; ++j) high[j] = maximum(load(p + i + j * width), high[j]);
    }
    const float here = horizontal_maximum(maximum(maximum(high[0], high[1]), maximum(high[2], high[3])));
    if (here > top.score) top = {here, b};
    if (maxima != nullptr) maxima[b] = here;
  }
  return top;
}

template <bool Stored>
TINYLLM_INLINE Sums weigh_blocks(const ScoreBlocks& x, const Softmax& softmax, float* weights, float* sums) {
  Sums total = {0, 0};
  for (Index b = 0; b < x.count; ++b) {
    const float* p = block_of(x, b);
    Lanes sum[parts];
    Lanes weighted[parts];
    TINYLLM_UNROLL
    for (Index j = 0; j < parts; ++j) sum[j] = weighted[j] = zero();
    for (Index i = 0; i < block; i += stride) {
      Lanes score[together];
      Lanes t[together];
      Lanes weight[together];
      TINYLLM_UNROLL
      for (Index j = 0; j < together; ++j) {
        score[j] = load(p + i + j * width);
        t[j] = exponent_of(score[j], softmax);
      }
      exponentials(t, weight);
      TINYLLM_UNROLL
      for (Index j = 0; j < together; ++j) {
        const Index part = j % parts;
        const Lanes cut = broadcast(softmax.cut);
        sum[part] = add_at_least(sum[part], score[j], cut, weight[j]);
        if constexpr (Stored) {
          store(weights + b * block + i + j * width, add_at_least(zero(), score[j], cut, weight[j]));
          weighted[part] = add_at_least(weighted[part], score[j], cut, product(weight[j], t[j]));
        }
      }
    }
    const float here = sum_of_lanes(sum);
    total.weights += static_cast<double>(here);
    if constexpr (Stored) {
      total.weighted += static_cast<double>(sum_of_lanes(weighted));
      sums[b] = here;
    }
  }
  return total;
}

inline double sum(const ScoreBlocks& x, const Softmax& softmax) {
  return weigh_blocks<false>(x, softmax, nullptr, nullptr).weights;
}

inline Sums weigh(const ScoreBlocks& x, const Softmax& softmax, float* weights, float* sums) {
  return weigh_blocks<true>(x, softmax, weights, sums);
}

inline Sums keep(const ScoreBlocks& x, const float* maxima, const Softmax& softmax, const Prefix& prefix, float* weights,
                 float* sums) {
  Sums total = {0, 0};
  for (Index b = 0; b < x.count; ++b) {
    const float bound = b * block <= prefix.last ? prefix.cut : prefix.above;
    sums[b] = 0;
    if (maxima[b] < bound) continue;
    const float* p = block_of(x, b);
    Lanes sum[parts];
    Lanes weighted[parts];
    TINYLLM_UNROLL
    for (Index j = 0; j < parts; ++j) sum[j] = weighted[j] = zero();
    for (Index i = 0; i < block; i += group) {
      TINYLLM_UNROLL
      for (Index j = 0; j < parts; ++j) {
        const Lanes score = load(p + i + j * width);
        float* at = weights + b * block + i + j * width;
        const Lanes weight = add_at_least(zero(), score, broadcast(bound), load(at));
        store(at, weight);
        sum[j] = add(sum[j], weight);
        weighted[j] = add_at_least(weighted[j], score, broadcast(bound), product(weight, exponent_of(score, softmax)));
      }
    }
    sums[b] = sum_of_lanes(sum);
    total.weights += static_cast<double>(sums[b]);
    total.weighted += static_cast<double>(sum_of_lanes(weighted));
  }
  return total;
}

template <bool Weighted>
TINYLLM_INLINE void measure_blocks(const ScoreBlocks& x, const float* maxima, const float* weights, const float* bounds,
                                   double* out) {
  for (Index j = 0; j < n_bounds; ++j) out[j] = 0;
  for (Index b = 0; b < x.count; ++b) {
    if (maxima[b] < bounds[0]) continue;
    const float* p = block_of(x, b);
    Lanes sums[n_bounds][parts];
    for (Index part = 0; part < parts; ++part) {
      Lanes sum[n_bounds];
      TINYLLM_UNROLL
      for (Index j = 0; j < n_bounds; ++j) sum[j] = zero();
      for (Index i = part * width; i < block; i += group) {
        const Lanes score = load(p + i);
        Lanes weight = broadcast(1.0F);
        if constexpr (Weighted) weight = load(weights + b * block + i);
        TINYLLM_UNROLL
        for (Index j = 0; j < n_bounds; ++j) sum[j] = add_at_least(sum[j], score, broadcast(bounds[j]), weight);
      }
      TINYLLM_UNROLL
      for (Index j = 0; j < n_bounds; ++j) sums[j][part] = sum[j];
    }
    for (Index j = 0; j < n_bounds; ++j) out[j] += static_cast<double>(sum_of_lanes(sums[j]));
  }
}

inline void measure(const ScoreBlocks& x, const float* maxima, const float* weights, const float* bounds, double* out) {
  if (weights == nullptr) return measure_blocks<false>(x, maxima, weights, bounds, out);
  measure_blocks<true>(x, maxima, weights, bounds, out);
}

/// Bit i: the i-th score of a group is at least `bound`, or at most.
TINYLLM_INLINE unsigned bits_from(const float* p, float bound) {
  unsigned bits = 0;
  TINYLLM_UNROLL
  for (Index j = 0; j < parts; ++j) bits |= bits_at_least(load(p + j * width), broadcast(bound)) << (j * width);
  return bits;
}
TINYLLM_INLINE unsigned bits_up_to(const float* p, float bound) {
  unsigned bits = 0;
  TINYLLM_UNROLL
  for (Index j = 0; j < parts; ++j) bits |= bits_at_least(broadcast(bound), load(p + j * width)) << (j * width);
  return bits;
}

inline Index collect(const ScoreBlocks& x, const float* maxima, const Prefix& prefix, float highest, Index limit,
                     TokenId* out) {
  Index n = 0;
  for (Index b = 0; b < x.count; ++b) {
    if (maxima[b] < prefix.cut) continue;
    for (Index i = 0; i < block; i += group) {
      const float* p = block_of(x, b) + i;
      const Index first = b * block + i;
      unsigned bits = bits_from(p, prefix.cut);
      if (bits == 0) continue;
      if (prefix.last < first + group - 1) {
        const unsigned reached = prefix.last < first ? 0U : (2U << (prefix.last - first)) - 1U;
        bits = (bits & reached) | bits_from(p, prefix.above);
      }
      bits &= bits_up_to(p, highest);
      for (; bits != 0; bits &= bits - 1) out[n++] = static_cast<TokenId>(first + __builtin_ctz(bits));
      if (n > limit) return n;
    }
  }
  return n;
}

inline Index nth_equal(const ScoreBlocks& x, const float* maxima, float score, Index n) {
  for (Index b = 0; b < x.count; ++b) {
    if (maxima[b] < score) continue;
    for (Index i = 0; i < block; i += group) {
      const float* p = block_of(x, b) + i;
      unsigned bits = bits_from(p, score) & bits_up_to(p, score);
      const Index here = __builtin_popcount(bits);
      if (n > here) {
        n -= here;
        continue;
      }
      for (; n > 1; --n) bits &= bits - 1;
      return b * block + i + __builtin_ctz(bits);
    }
  }
  return x.count * block;
}

inline constexpr sampler_detail::SamplingKernels kernels = {&highest, &sum, &weigh, &keep, &measure, &collect, &nth_equal};

}  // namespace sampling
}  // namespace TINYLLM_LEVEL
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
#endif
