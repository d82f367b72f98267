// SPDX-License-Identifier: Apache-2.0
// The kernel that reads stored keys and values once, at the speed of memory, for a few queries at a time.
//
//     avx2::stream<Eigen::half>(job);
//
// Internal, and empty unless TINYLLM_LEVEL is defined, like kernels_common.hpp (no #pragma once). A pair's result depends on
// the positions of its keys alone: not on the other pairs, on how the keys are cut into runs, or on what lies behind them.
#ifdef TINYLLM_LEVEL
namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace TINYLLM_LEVEL {

/// The queries of a job, scaled, their columns in the order in which load_pair gives a key's.
/// Shape: [n_pairs, padded(d)]
template <class Dtype>
inline void pack_queries(const AttentionJob& job, float* packed) {
  const Index stride = attention_detail::padded(job.d);
  for (Index i = 0; i < job.n_pairs; ++i) {
    const Index pair = job.first_pair + i;
    const float* q = job.q + pair / job.group * job.q_stride + pair % job.group * job.d;
    float* row = packed + i * stride;
    for (Index c = 0; c < stride; ++c) row[c] = 0.0F;
    for (Index c = 0; c < job.d; ++c) {
      const Index within = c % pair_width;
      row[splits_pairs<Dtype> ? c - within + within % 2 * width + within / 2 : c] = q[c] * job.scale;
    }
  }
}

/// Scores of one pair for a tile become weights; [first, end) are the keys it sees.
/// Returns the factor for what the pair has summed up before.
inline float soften(float* scores, Index first, Index end, float& maximum_so_far, float& sum_so_far) {
  const Index n = (end + width - 1) / width * width;
  for (Index i = 0; i < first; ++i) scores[i] = nothing;
  for (Index i = end; i < n; ++i) scores[i] = nothing;
  Lanes highest = broadcast(nothing);
  for (Index i = 0; i < n; i += width) highest = maximum(load(scores + i), highest);
  const float before = maximum_so_far;
  const float here = horizontal_maximum(highest);
  const float now = here > before ? here : before;
  const float lowest = -3.402823466e38F;
  const float base = now > lowest ? now : lowest;  // where nothing is seen, −inf − base is −inf still
  Lanes sum = zero();
  for (Index i = 0; i < n; i += width) {
    const Lanes weight = exp2(subtract(load(scores + i), broadcast(base)));
    store(scores + i, weight);
    sum = add(sum, weight);
  }
  float factor = 1.0F;
  if (now != before) {
    float factors[width];
    store(factors, exp2(broadcast(before - base)));
    factor = factors[0];
  }
  maximum_so_far = now;
  sum_so_far = sum_so_far * factor + horizontal_sum(sum);
  return factor;
}

inline void scale_row(float* row, Index n, float factor) {
  for (Index c = 0; c < n; c += width) store(row + c, multiply(load(row + c), broadcast(factor)));
}

/// Adds the keys [tile, tile_end) to pairs [pair, pair + G). `run` holds the tile's first key.
template <class Dtype, unsigned G>
inline void stream_tile(const AttentionJob& job, const StoredRun* run, Index tile, Index tile_end, Index pair, const float* q,
                        float* scores) {
  constexpr Index s_stride = attention_detail::longest_tile + 4;
  const Index d = job.d;
  const Index stride = attention_detail::padded(d);
  Index first[G];
  Index end[G];
  for (unsigned g = 0; g < G; ++g) {
    first[g] = larger(job.first_seen(pair + g), tile) - tile;
    end[g] = smaller(job.end_seen(pair + g), tile_end) - tile;
  }
  // Only the first pairs of a tile meet it in memory; the next ones find it in cache.
  const Index fetched = pair == 0 ? d * Index{sizeof(Dtype)} : 0;
  const Index from = first[0];
  const Index to = end[G - 1];
  if (from >= to) return;
  while (run->first + run->rows <= tile + from) ++run;

  for_each_run(run, tile + from, tile + to, [&](const StoredRun& at, Index position, Index n) {
    const Dtype* keys = static_cast<const Dtype*>(at.keys) + (position - at.first) * d;
    float* to_scores = scores + (position - tile);
    // The usual widths are known when compiling, so that their loops unroll.
    constexpr unsigned usual = width >= 8 ? 64 : 0;
    if (usual != 0 && d == usual) {
      dot_rows<Dtype, G, usual>(keys, n, d, q + pair * stride, stride, to_scores, s_stride, fetched);
    } else if (usual != 0 && d == 2 * usual) {
      dot_rows<Dtype, G, 2 * usual>(keys, n, d, q + pair * stride, stride, to_scores, s_stride, fetched);
    } else {
      dot_rows<Dtype, G, 0>(keys, n, d, q + pair * stride, stride, to_scores, s_stride, fetched);
    }
  });
  float* sums = job.part.weighted + pair * stride;
  for (unsigned g = 0; g < G; ++g) {
    if (first[g] >= end[g]) continue;
    const float factor = soften(scores + g * s_stride, first[g], end[g], job.part.maximum[pair + g], job.part.sum[pair + g]);
    if (factor != 1.0F) scale_row(sums + g * stride, stride, factor);
  }
  for_seen<G>(first, end, [&]<unsigned Count>(unsigned g, Index seen, Index seen_end) {
    if (seen >= seen_end) return;
    const StoredRun* at_first = run;
    while (at_first->first + at_first->rows <= tile + seen) ++at_first;
    for_each_run(at_first, tile + seen, tile + seen_end, [&](const StoredRun& at, Index position, Index n) {
      const Dtype* values = static_cast<const Dtype*>(at.values) + (position - at.first) * d;
      outer_rows<Dtype, Count>(values, d, n, d, {scores + g * s_stride + (position - tile), s_stride, 1}, sums + g * stride,
                               stride, fetched);
    });
  });
}

inline void clear(const Partial& part, Index pairs, Index d) {
  for (Index i = 0; i < pairs; ++i) {
    part.maximum[i] = nothing;
    part.sum[i] = 0.0F;
  }
  for (Index i = 0; i < pairs * attention_detail::padded(d); i += width) store(part.weighted + i, zero());
}

template <class Dtype>
inline void stream(const AttentionJob& job) {
  const Index d = job.d;
  float* q = job.scratch;                                         // [n_pairs, padded(d)]
  float* scores = q + job.n_pairs * attention_detail::padded(d);  // [4, longest_tile + 4]
  clear(job.part, job.n_pairs, d);
  if (job.first_key >= job.end_key) return;
  pack_queries<Dtype>(job, q);
  const Index tile = attention_detail::tile_rows(d * Index{sizeof(Dtype)});
  const StoredRun* run = find_run(job.runs, job.n_runs, job.first_key);
  for (Index first = job.first_key; first < job.end_key; first += tile) {
    const Index end = smaller(first + tile, job.end_key);
    while (run->first + run->rows <= first) ++run;
    Index pair = 0;
    for (Index left = job.n_pairs; left > 0;) {
      // Groups of nearly equal size: five pairs are three and two.
      const Index groups = (left + 3) / 4;
      const Index size = (left + groups - 1) / groups;
      if (size == 4) {
        stream_tile<Dtype, 4>(job, run, first, end, pair, q, scores);
      } else if (size == 3) {
        stream_tile<Dtype, 3>(job, run, first, end, pair, q, scores);
      } else if (size == 2) {
        stream_tile<Dtype, 2>(job, run, first, end, pair, q, scores);
      } else {
        stream_tile<Dtype, 1>(job, run, first, end, pair, q, scores);
      }
      pair += size;
      left -= size;
    }
  }
}

}  // namespace TINYLLM_LEVEL
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
#endif
