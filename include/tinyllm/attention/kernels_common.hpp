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
using attention_detail::Fetching;
using attention_detail::nothing;
using attention_detail::pair_block;
using attention_detail::Partial;
using attention_detail::StoredRun;

inline constexpr Index pair_width = 2 * width;

TINYLLM_INLINE Index smaller(Index a, Index b) { return a < b ? a : b; }
TINYLLM_INLINE Index larger(Index a, Index b) { return a > b ? a : b; }
TINYLLM_INLINE float larger(float a, float b) { return a > b ? a : b; }

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

/// Memory to ask for before it is needed: so many bytes at each step of what is at work, one step's behind the other's.
struct Fetch {
  const char* first;
  Index bytes;  // 0: nothing
};

/// Asks for those of one step, if anything is fetched at all: loops are compiled for both, so that they are free of it if not.
template <bool fetches>
TINYLLM_INLINE void fetch(const Fetch& what, Index step) {
  if constexpr (fetches) {
    const char* at = what.first + step * what.bytes;
    for (Index byte = 0; byte < what.bytes; byte += 64) __builtin_prefetch(at + byte, 0, 2);
  }
}

TINYLLM_INLINE const char* row_at(const void* rows, Index row, Index bytes) {
  return static_cast<const char*>(rows) + row * bytes;
}

/// What to ask for while the keys of a run's rows [row, ...) are at work, `step` rows at a time; `bytes` are those of a row.
TINYLLM_INLINE Fetch fetch_with_keys(Fetching fetching, const StoredRun& run, Index row, Index bytes, Index step) {
  const Index some = bytes * step;
  if (fetching == Fetching::ahead) return {row_at(run.keys, row, bytes) + attention_detail::fetch_ahead, some};
  return {row_at(run.values, row, bytes), fetching == Fetching::other ? some : 0};
}

/// The run that holds n positions from `position` on, `run` or a later one; null if no run holds them all.
TINYLLM_INLINE const StoredRun* run_of(const AttentionJob& job, const StoredRun* run, Index position, Index n) {
  while (run + 1 < job.runs + job.n_runs && run->first + run->rows <= position) ++run;
  return run->first + run->rows < position + n ? nullptr : run;
}

/// What to ask for while the values of n rows from `position` on are at work, columns whose bytes are [from, from + some):
/// a share of the keys that lie as far into the next tile.
TINYLLM_INLINE Fetch fetch_with_values(const AttentionJob& job, const StoredRun& run, Index position, Index n, Index bytes,
                                       Index from, Index some) {
  if (job.fetching == Fetching::ahead) {
    return {row_at(run.values, position - run.first, bytes) + attention_detail::fetch_ahead, from == 0 ? bytes : 0};
  }
  const Index wanted = position + job.next;
  const StoredRun* next = job.fetching == Fetching::none ? nullptr : run_of(job, &run, wanted, n);
  if (next == nullptr) return {nullptr, 0};
  return {row_at(next->keys, wanted - next->first, bytes) + n * from, some};
}

/// The keys that lie a tile further on, asked for in two halves: while this tile's weights are made, and while its values are
/// at work. Smooth traffic is what counts: where less is calculated than read, all of it beside the values comes in bursts.
struct NextKeys {
  const char* first;  // null: nothing
  Index bytes;        // of a row
  Index from;         // this tile's first row, and how many it has
  Index rows;

  /// Those of rows [first, end) of the tile that begins at position `tile`; `run` holds the first of them.
  TINYLLM_INLINE NextKeys(const AttentionJob& job, const StoredRun* run, Index tile, Index first_row, Index end_row,
                          Index row_bytes)
      : first(nullptr), bytes(row_bytes), from(tile + first_row), rows(end_row - first_row) {
    const Index wanted = from + job.next;
    const StoredRun* at = job.fetching == Fetching::other ? run_of(job, run, wanted, rows) : nullptr;
    if (at != nullptr) first = row_at(at->keys, wanted - at->first, bytes);
  }

  /// The first half, for weights of `step` keys at a time.
  TINYLLM_INLINE Fetch with_weights(Index step) const {
    return {first, first == nullptr ? 0 : smaller(step, rows) / 2 * bytes};
  }

  /// A share of the second half, for the values of n rows from `position` on, columns whose bytes are [column, column + some),
  /// `step` rows at a time. As fetch_with_values where rows are asked for ahead.
  TINYLLM_INLINE Fetch with_values(const AttentionJob& job, const StoredRun& run, Index position, Index n, Index column,
                                   Index some, Index step) const {
    if (job.fetching == Fetching::ahead) {
      return {row_at(run.values, position - run.first, bytes) + attention_detail::fetch_ahead, column == 0 ? step * bytes : 0};
    }
    if (first == nullptr) return {nullptr, 0};
    return {row_at(first, rows / 2 + (position - from) / 2, bytes) + n * column / 2, step * some / 2};
  }
};

/// Asks for a line of each page of the tile behind the next one: until a page's address is known, nobody gets its rows. (It
/// pays where much is calculated for each byte, as over int8 rows; over the other types it costs 5 to 15 %.)
TINYLLM_INLINE void fetch_pages(const AttentionJob& job, const StoredRun* run, Index tile, Index bytes) {
  const Index wanted = tile + job.next + job.tile;
  const StoredRun* at = job.fetching == Fetching::other ? run_of(job, run, wanted, job.tile) : nullptr;
  if (at == nullptr) return;
  constexpr Index page = 4096;
  for (Index byte = 0; byte < job.tile * bytes; byte += page) {
    __builtin_prefetch(row_at(at->keys, wanted - at->first, bytes) + byte, 0, 2);
    __builtin_prefetch(row_at(at->values, wanted - at->first, bytes) + byte, 0, 2);
  }
}

/// Scores below this count as this one, so that −inf has a distance from it.
inline constexpr float lowest_score = -3.402823466e38F;

/// Scores [0, n) of a tile that G pairs do not see become −inf; pair g sees [first[g], end[g]).
template <unsigned G>
TINYLLM_INLINE void hide_unseen(float* scores, Index n, const Index* first, const Index* end) {
  for (unsigned g = 0; g < G; ++g) {
    float* of_pair = scores + g * attention_detail::score_stride;
    for (Index i = 0; i < smaller(first[g], n); ++i) of_pair[i] = nothing;
    for (Index i = larger(end[g], Index{0}); i < n; ++i) of_pair[i] = nothing;
  }
}

/// The highest of scores [0, n) of G pairs, lane by lane.
template <unsigned G>
TINYLLM_INLINE void highest_scores(const float* scores, Index n, Lanes* highest) {
  TINYLLM_UNROLL
  for (unsigned g = 0; g < G; ++g) highest[g] = load(scores + g * attention_detail::score_stride);
  for (Index i = width; i < n; i += width) {
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) highest[g] = maximum(load(scores + g * attention_detail::score_stride + i), highest[g]);
  }
}

/// to[0, n) = from[0, n), then zeros up to a whole vector.
TINYLLM_INLINE void copy_floats(const float* from, Index n, float* to) {
  Index i = 0;
  for (; i + width <= n; i += width) store(to + i, load(from + i));
  if (i < n) {
    store(to + i, zero());
    for (; i < n; ++i) to[i] = from[i];
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
template <class Dtype, unsigned G, unsigned N, Into into, bool fetches>
TINYLLM_INLINE void outer_block(const Dtype* rows, Index row_stride, Index n, const Factors& factors, float* out,
                                Index out_stride, Index part, const Fetch& fetched) {
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
    fetch<fetches>(fetched, k);
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

/// The same, with or without fetching.
template <class Dtype, unsigned G, unsigned N, Into into>
TINYLLM_INLINE void outer_columns(const Dtype* rows, Index row_stride, Index n, const Factors& factors, float* out,
                                  Index out_stride, Index part, const Fetch& fetched) {
  if (fetched.bytes == 0) {
    outer_block<Dtype, G, N, into, false>(rows, row_stride, n, factors, out, out_stride, part, fetched);
  } else {
    outer_block<Dtype, G, N, into, true>(rows, row_stride, n, factors, out, out_stride, part, fetched);
  }
}

/// The widest block whose sums for G rows stay in registers.
template <unsigned G>
inline constexpr unsigned block_pairs = n_registers >= 32 ? (G <= 3 ? 4 : 2)
                                                          : (G == 1   ? 4
                                                             : G <= 3 ? 2
                                                                      : 1);

/// out[g][c] (+)= Σ_k factor(g, k) · rows[k][c] for columns [0, d); the sum over k goes in order.
/// `fetched(first, count)` says what to ask for while `count` columns from `first` on are at work.
template <class Dtype, unsigned G, Into into, class F>
TINYLLM_INLINE void outer_rows(const Dtype* rows, Index row_stride, Index n, Index d, const Factors& factors, float* out,
                               Index out_stride, F fetched) {
  constexpr unsigned N = block_pairs<G>;
  Index c = 0;
  for (; c + N * pair_width <= d; c += N * pair_width) {
    outer_columns<Dtype, G, N, into>(rows + c, row_stride, n, factors, out + c, out_stride, 0, fetched(c, N * pair_width));
  }
  if constexpr (N > 2) {
    for (; c + 2 * pair_width <= d; c += 2 * pair_width) {
      outer_columns<Dtype, G, 2, into>(rows + c, row_stride, n, factors, out + c, out_stride, 0, fetched(c, 2 * pair_width));
    }
  }
  if constexpr (N > 1) {
    for (; c + pair_width <= d; c += pair_width) {
      outer_columns<Dtype, G, 1, into>(rows + c, row_stride, n, factors, out + c, out_stride, 0, fetched(c, pair_width));
    }
  }
  if (c < d) outer_columns<Dtype, G, 1, into>(rows + c, row_stride, n, factors, out + c, out_stride, d - c, fetched(c, d - c));
}

/// The same for float rows that are in cache already.
template <unsigned G, Into into = Into::sum>
inline void outer_floats(const float* rows, Index row_stride, Index n, Index d, const Factors& factors, float* out,
                         Index out_stride) {
  outer_rows<float, G, into>(rows, row_stride, n, d, factors, out, out_stride, [](Index, Index) { return Fetch{nullptr, 0}; });
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

/// The same, cut into runs: `product(g, run, position, n)` adds n rows of a run from `position` on. The tile begins at position
/// `tile`, `run` holds its first key that is seen.
template <unsigned G, class Product>
TINYLLM_INLINE void for_seen_runs(const StoredRun* run, Index tile, const Index* first, const Index* end, Product product) {
  for_seen<G>(first, end, [&]<unsigned Count>(unsigned g, Index seen, Index seen_end) {
    if (seen >= seen_end) return;
    const StoredRun* at_first = run;
    while (at_first->first + at_first->rows <= tile + seen) ++at_first;
    for_each_run(at_first, tile + seen, tile + seen_end,
                 [&](const StoredRun& at, Index position, Index n) { product.template operator()<Count>(g, at, position, n); });
  });
}

/// f<d>() for rows of a usual width that lie densely, so that loops over their columns unroll, else f<0>().
template <class F>
TINYLLM_INLINE void with_width(Index d, Index row, F f) {
  constexpr unsigned usual = width >= 8 ? 64 : 0;
  if (usual != 0 && d == usual && row == d) {
    f.template operator()<usual>();
  } else if (usual != 0 && d == 2 * usual && row == d) {
    f.template operator()<2 * usual>();
  } else {
    f.template operator()<0>();
  }
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
