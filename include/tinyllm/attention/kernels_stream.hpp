// SPDX-License-Identifier: Apache-2.0
// The kernel that reads stored keys and values once, at the speed of memory, for a few queries at a time.
//
//     avx2::stream<avx2::FloatProducts<Eigen::half>>(job);
//
// Internal, and empty unless TINYLLM_LEVEL is defined, like kernels_common.hpp (no #pragma once). A pair's result depends on
// the positions of its keys alone: not on the other pairs, on how the keys are cut into runs, or on what lies behind them.
#ifdef TINYLLM_LEVEL
namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace TINYLLM_LEVEL {

inline void scale_row(float* row, Index n, float factor) {
  for (Index c = 0; c < n; c += width) store(row + c, multiply(load(row + c), broadcast(factor)));
}

/// The memory of a stream.
struct StreamScratch {
  const Index* first_seen;  // [n_pairs], positions
  const Index* end_seen;
  float* queries;  // [n_pairs, query_floats]
  float* scores;   // [4, score_stride]
  float* sums;     // [n_pairs, width]
  float* more;     // what Products needs
};

/// Adds the keys [tile, tile_end) to pairs [pair, pair + G). `run` holds the tile's first key.
template <class Products, unsigned G>
inline void stream_tile(const AttentionJob& job, const StoredRun* run, Index tile, Index tile_end, Index pair,
                        const StreamScratch& scratch) {
  const Index stride = attention_detail::padded(job.d_value);
  Index first[G];
  Index end[G];
  for (unsigned g = 0; g < G; ++g) {
    first[g] = larger(scratch.first_seen[pair + g], tile) - tile;
    end[g] = smaller(scratch.end_seen[pair + g], tile_end) - tile;
  }
  const Index from = first[0];
  const Index to = end[G - 1];
  if (from >= to) return;
  while (run->first + run->rows <= tile + from) ++run;

  const float* queries = scratch.queries + pair * Products::query_floats(job.d);
  for_each_run(run, tile + from, tile + to, [&](const StoredRun& at, Index position, Index n) {
    Products::template scores<G>(job, at, position - at.first, n, queries, scratch.scores + (position - tile));
  });
  float* weighted = job.part.weighted + pair * stride;
  typename Products::template Tile<G> weights(job, run, tile, first, end, scratch.scores);
  float factors[G];
  weights.soften(job.part.maximum + pair, scratch.sums + pair * width, factors);
  for (unsigned g = 0; g < G; ++g) {
    if (factors[g] != 1.0F) scale_row(weighted + g * stride, stride, factors[g]);
  }
  weights.add_values(weighted, scratch.more);
}

inline void clear(const Partial& part, Index pairs, Index d) {
  for (Index i = 0; i < pairs; ++i) {
    part.maximum[i] = nothing;
    part.sum[i] = 0.0F;
  }
  for (Index i = 0; i < pairs * attention_detail::padded(d); i += width) store(part.weighted + i, zero());
}

template <class Products>
inline void stream(const AttentionJob& given) {
  AttentionJob job = given;
  const Index d = job.d;
  clear(job.part, job.n_pairs, job.d_value);
  if (job.first_key >= job.end_key) return;
  alignas(64) float sums[pair_block * width] = {};
  Index first_seen[pair_block];
  Index end_seen[pair_block];
  StreamScratch scratch{first_seen, end_seen, job.scratch, job.scratch + attention_detail::packed_query(d) * pair_block,
                        sums,       nullptr};
  scratch.more = scratch.scores + attention_detail::score_stride * pair_block;
  for (Index i = 0; i < job.n_pairs; ++i) {
    const Index pair = job.first_pair + i;
    first_seen[i] = job.first_seen(i);
    end_seen[i] = job.end_seen(i);
    if (job.packed) continue;
    Products::pack(job.q + pair / job.group * job.q_stride + pair % job.group * d, d, job.scale,
                   scratch.queries + i * Products::query_floats(d));
  }
  const Fetching fetching = job.fetching;
  const Index tile = job.tile = Products::tile_rows(d);
  const StoredRun* run = find_run(job.runs, job.n_runs, job.first_key);
  for (Index first = job.first_key; first < job.end_key; first += tile) {
    const Index end = smaller(first + tile, job.end_key);
    while (run->first + run->rows <= first) ++run;
    Index pair = 0;
    for (Index left = job.n_pairs; left > 0;) {
      // Only the first pairs of a tile meet it in memory; the next ones find it in cache.
      job.fetching = pair == 0 ? fetching : Fetching::none;
      // Groups of nearly equal size: five pairs are three and two.
      const Index groups = (left + 3) / 4;
      const Index size = (left + groups - 1) / groups;
      if (size == 4) {
        stream_tile<Products, 4>(job, run, first, end, pair, scratch);
      } else if (size == 3) {
        stream_tile<Products, 3>(job, run, first, end, pair, scratch);
      } else if (size == 2) {
        stream_tile<Products, 2>(job, run, first, end, pair, scratch);
      } else {
        stream_tile<Products, 1>(job, run, first, end, pair, scratch);
      }
      pair += size;
      left -= size;
    }
  }
  for (Index i = 0; i < job.n_pairs; ++i) job.part.sum[i] = horizontal_sum(load(sums + i * width));
}

}  // namespace TINYLLM_LEVEL
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
#endif
