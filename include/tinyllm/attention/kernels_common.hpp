// SPDX-License-Identifier: Apache-2.0
// The products that every attention kernel is made of, once for each level.
//
//     #define TINYLLM_LEVEL avx2
//     TINYLLM_TARGET_AVX2_BEGIN
//     #include <tinyllm/attention/kernels_common.hpp>
//
// Internal, and empty unless TINYLLM_LEVEL is defined: kernels.hpp includes this text once for each level, inside the
// level's region, so there is no #pragma once here.
#ifdef TINYLLM_LEVEL
namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace TINYLLM_LEVEL {

using attention_detail::AttentionJob;
using attention_detail::nothing;
using attention_detail::pair_block;
using attention_detail::Partial;
using attention_detail::StoredRun;

inline constexpr Index pair_width = 2 * width;

TINYLLM_INLINE Index smaller(Index a, Index b) { return a < b ? a : b; }
TINYLLM_INLINE Index larger(Index a, Index b) { return a > b ? a : b; }

/// Calls f(run, first, n) for the runs of positions [first, end); `at` is the run that holds `first`.
template <class F>
TINYLLM_INLINE void for_each_run(const StoredRun* at, Index first, Index end, F f) {
  while (first < end) {
    const Index stop = smaller(end, at->first + at->rows);
    f(*at, first, stop - first);
    first = stop;
    ++at;
  }
}

/// The run that holds a position.
inline const StoredRun* find_run(const StoredRun* runs, Index n_runs, Index position) {
  while (n_runs > 1) {
    const Index half = n_runs / 2;
    if (runs[half].first <= position) {
      runs += half;
      n_runs -= half;
    } else {
      n_runs = half;
    }
  }
  return runs;
}

/// Fetches the bytes that lie fetch_ahead behind a row, so that rows come in order and in time.
TINYLLM_INLINE void fetch(const void* row, Index bytes) {
  const char* ahead = static_cast<const char*>(row) + attention_detail::fetch_ahead;
  for (Index byte = 0; byte < bytes; byte += 64) __builtin_prefetch(ahead + byte);
}

/// sum[g] += q[g] · row, lane by lane. `Width` is d where it is known when compiling, else 0.
template <class Dtype, unsigned G, unsigned Width>
TINYLLM_INLINE void add_products(const Dtype* row, Index d, const float* q, Index q_stride, Lanes* sum) {
  const auto add_pair = [&](Lanes a, Lanes b, Index c) {
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) {
      sum[g] = fma(a, load(q + g * q_stride + c), sum[g]);
      sum[g] = fma(b, load(q + g * q_stride + c + width), sum[g]);
    }
  };
  Lanes a;
  Lanes b;
  if constexpr (Width != 0) {
    TINYLLM_UNROLL
    for (unsigned c = 0; c < Width; c += pair_width) {
      load_pair(row + c, a, b);
      add_pair(a, b, c);
    }
  } else {
    const Index whole = d / pair_width * pair_width;
    for (Index c = 0; c < whole; c += pair_width) {
      load_pair(row + c, a, b);
      add_pair(a, b, c);
    }
    if (whole < d) {
      load_pair_part(row + whole, d - whole, a, b);
      add_pair(a, b, whole);
    }
  }
}

/// scores[g][row] = q[g] · key row, for G queries; rows go in sequence and four of them end in one reduction.
/// Up to three scores behind the last are overwritten. `fetched` bytes of each row are fetched ahead.
template <class Dtype, unsigned G, unsigned Width>
inline void dot_rows(const Dtype* keys, Index rows, Index d, const float* q, Index q_stride, float* scores, Index s_stride,
                     Index fetched) {
  for (Index r = 0; r < rows; r += 4) {
    Lanes sums[4][G];
    for (unsigned i = 0; i < 4; ++i) {
      const Dtype* row = keys + smaller(r + i, rows - 1) * (Width != 0 ? Width : d);
      fetch(row, fetched);
      Lanes sum[G];
      TINYLLM_UNROLL
      for (unsigned g = 0; g < G; ++g) sum[g] = zero();
      add_products<Dtype, G, Width>(row, d, q, q_stride, sum);
      TINYLLM_UNROLL
      for (unsigned g = 0; g < G; ++g) sums[i][g] = sum[g];
    }
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) store_sums(sums[0][g], sums[1][g], sums[2][g], sums[3][g], scores + g * s_stride + r);
  }
}

/// Where a factor of G rows lies: element (g, k) at data[g · row + k · step].
struct Factors {
  const float* data;
  Index row;
  Index step;
};

enum class Into { fresh, sum };  // whether a product replaces what it is stored to

/// out[g][c] (+)= Σ_k factor(g, k) · rows[k][c] for a block of N pairs of vectors from column c on.
/// `fetched` bytes of each row are fetched ahead.
template <class Dtype, unsigned G, unsigned N, Into into>
TINYLLM_INLINE void outer_columns(const Dtype* rows, Index row_stride, Index n, const Factors& factors, float* out,
                                  Index out_stride, Index part, Index fetched) {
  Lanes sum[G][2 * N];
  TINYLLM_UNROLL
  for (unsigned g = 0; g < G; ++g) {
    TINYLLM_UNROLL
    for (unsigned i = 0; i < 2 * N; ++i) sum[g][i] = into == Into::sum ? load(out + g * out_stride + i * width) : zero();
  }
  for (Index k = 0; k < n; ++k) {
    const Dtype* row = rows + k * row_stride;
    Lanes x[2 * N];
    if (N == 1 && part > 0) {
      load_pair_part(row, part, x[0], x[1]);
    } else {
      TINYLLM_UNROLL
      for (unsigned i = 0; i < N; ++i) load_pair(row + i * pair_width, x[2 * i], x[2 * i + 1]);
    }
    fetch(row, fetched);
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) {
      const Lanes factor = broadcast(factors.data[g * factors.row + k * factors.step]);
      TINYLLM_UNROLL
      for (unsigned i = 0; i < 2 * N; ++i) sum[g][i] = fma(factor, x[i], sum[g][i]);
    }
  }
  TINYLLM_UNROLL
  for (unsigned g = 0; g < G; ++g) {
    TINYLLM_UNROLL
    for (unsigned i = 0; i < 2 * N; ++i) store(out + g * out_stride + i * width, sum[g][i]);
  }
}

/// The widest block whose sums for G rows stay in registers.
template <unsigned G>
inline constexpr unsigned block_pairs = n_registers >= 32 ? (G <= 3 ? 4 : 2)
                                                          : (G == 1   ? 4
                                                             : G <= 3 ? 2
                                                                      : 1);

/// out[g][c] (+)= Σ_k factor(g, k) · rows[k][c] for columns [0, d); the sum over k goes in order.
/// `fetched` bytes of each row are fetched ahead, all of them with the first columns: memory is read in order.
template <class Dtype, unsigned G, Into into = Into::sum>
inline void outer_rows(const Dtype* rows, Index row_stride, Index n, Index d, const Factors& factors, float* out,
                       Index out_stride, Index fetched = 0) {
  constexpr unsigned N = block_pairs<G>;
  Index c = 0;
  const auto once = [&] { return c == 0 ? fetched : 0; };
  for (; c + N * pair_width <= d; c += N * pair_width) {
    outer_columns<Dtype, G, N, into>(rows + c, row_stride, n, factors, out + c, out_stride, 0, once());
  }
  if constexpr (N > 2) {
    for (; c + 2 * pair_width <= d; c += 2 * pair_width) {
      outer_columns<Dtype, G, 2, into>(rows + c, row_stride, n, factors, out + c, out_stride, 0, once());
    }
  }
  if constexpr (N > 1) {
    for (; c + pair_width <= d; c += pair_width) {
      outer_columns<Dtype, G, 1, into>(rows + c, row_stride, n, factors, out + c, out_stride, 0, once());
    }
  }
  if (c < d) outer_columns<Dtype, G, 1, into>(rows + c, row_stride, n, factors, out + c, out_stride, d - c, once());
}

/// Σ over the keys that each of G pairs sees, [first[g], end[g]) of a tile: those that all see together, the others one pair
/// at a time, so that no key is ever multiplied by the zero of a mask. Each pair's keys go in order.
/// `product(g, count, first, end)` adds keys [first, end) to `count` pairs from g on (count is 1 or G, a constant).
template <unsigned G, class Product>
TINYLLM_INLINE void for_seen(const Index* first, const Index* end, Product product) {
  const Index common_first = first[G - 1];
  const Index common_end = end[0];
  if (common_first >= common_end) {
    for (unsigned g = 0; g < G; ++g) product.template operator()<1>(g, first[g], end[g]);
    return;
  }
  for (unsigned g = 0; g < G - 1; ++g) product.template operator()<1>(g, first[g], common_first);
  product.template operator()<G>(0, common_first, common_end);
  for (unsigned g = 1; g < G; ++g) product.template operator()<1>(g, common_end, end[g]);
}

/// total = merge(total, part): the softmax over both their keys.
inline void fold(const Partial& total, const Partial& part, Index pairs, Index d) {
  const Index stride = attention_detail::padded(d);
  for (Index i = 0; i < pairs; ++i) {
    if (part.maximum[i] == nothing && part.sum[i] == 0.0F) continue;  // it has seen no key
    const bool first = total.maximum[i] == nothing && total.sum[i] == 0.0F;
    const float highest = first || part.maximum[i] > total.maximum[i] ? part.maximum[i] : total.maximum[i];
    float factors[width];
    store(factors, exp2(broadcast(part.maximum[i] - highest)));
    const float of_part = factors[0];
    store(factors, exp2(broadcast(total.maximum[i] - highest)));
    const float of_total = first ? 0.0F : factors[0];
    total.maximum[i] = highest;
    total.sum[i] = first ? part.sum[i] : total.sum[i] * of_total + part.sum[i] * of_part;
    const Lanes a = broadcast(of_total);
    const Lanes b = broadcast(of_part);
    float* sum = total.weighted + i * stride;
    const float* more = part.weighted + i * stride;
    for (Index c = 0; c < stride; c += width) {
      const Lanes added = multiply(load(more + c), b);
      store(sum + c, first ? added : fma(load(sum + c), a, added));
    }
  }
}

}  // namespace TINYLLM_LEVEL
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
#endif
