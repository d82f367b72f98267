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
  float* scores;   // [2 · 4, score_stride]
  float* sums;     // [n_pairs, width]
  float* more;     // what Products needs
};

/// f<size>(), for 1 to 4.
template <class F>
TINYLLM_INLINE void with_group(Index size, F f) {
  if (size == 4) {
    f.template operator()<4>();
  } else if (size == 3) {
    f.template operator()<3>();
  } else if (size == 2) {
    f.template operator()<2>();
  } else {
    f.template operator()<1>();
  }
}

/// What G pairs see of a tile.
template <unsigned G>
struct SeenTile {
  Index tile;            // its first position
  const StoredRun* run;  // the one that holds the first key that is seen
  Index first[G];        // keys [first[g], end[g]) are seen by pair g
  Index end[G];

  TINYLLM_INLINE SeenTile(const StoredRun* tile_run, Index tile_first, Index tile_end, Index pair, const StreamScratch& scratch)
      : tile(tile_first), run(tile_run) {
    for (unsigned g = 0; g < G; ++g) {
      first[g] = larger(scratch.first_seen[pair + g], tile) - tile;
      end[g] = smaller(scratch.end_seen[pair + g], tile_end) - tile;
    }
    while (any() && run->first + run->rows <= tile + first[0]) ++run;
  }
  TINYLLM_INLINE bool any() const { return first[0] < end[G - 1]; }
};

/// scores[g][i] = query g · key i of the tile, for those that are seen.
template <class Products, unsigned G>
TINYLLM_INLINE void tile_scores(const AttentionJob& job, const SeenTile<G>& seen, const float* queries, float* scores) {
  for_each_run(seen.run, seen.tile + seen.first[0], seen.tile + seen.end[G - 1],
               [&](const StoredRun& at, Index position, Index n) {
                 Products::template scores<G>(job, at, position - at.first, n, queries, scores + (position - seen.tile));
               });
}

/// The scores become weights, and what the pairs have summed up before is scaled to them.
template <unsigned G, class Tile>
TINYLLM_INLINE void soften_tile(const AttentionJob& job, Tile& weights, Index pair, const StreamScratch& scratch) {
  const Index stride = attention_detail::padded(job.d_value);
  float factors[G];
  weights.soften(job.part.maximum + pair, scratch.sums + pair * width, factors);
  for (unsigned g = 0; g < G; ++g) {
    if (factors[g] != 1.0F) scale_row(job.part.weighted + (pair + g) * stride, stride, factors[g]);
  }
}

/// Adds the keys [tile, tile_end) to pairs [pair, pair + G). `run` holds the tile's first key.
template <class Products, unsigned G>
inline void stream_tile(const AttentionJob& job, const StoredRun* run, Index tile, Index tile_end, Index pair,
                        const StreamScratch& scratch) {
  const SeenTile<G> seen(run, tile, tile_end, pair, scratch);
  if (!seen.any()) return;
  tile_scores<Products, G>(job, seen, scratch.queries + pair * Products::query_floats(job.d), scratch.scores);
  typename Products::template Tile<G> weights(job, seen.run, tile, seen.first, seen.end, scratch.scores);
  soften_tile<G>(job, weights, pair, scratch);
  weights.add_values(job.part.weighted + pair * attention_detail::padded(job.d_value), scratch.more);
}

/// Adds all keys of the job to its only G pairs. The next tile's scores are made between a tile's softmax and its values, which
/// would wait for the last of its weights; scratch holds the scores of two tiles.
template <class Products, unsigned G>
inline void stream_ahead(AttentionJob& job, const StreamScratch& scratch) {
  job.next = 2 * job.tile;
  float* scores = scratch.scores;
  float* next_scores = scores + G * attention_detail::score_stride;
  const StoredRun* run = find_run(job.runs, job.n_runs, job.first_key);
  const auto see = [&](Index tile, float* to) {
    while (tile < job.end_key && run->first + run->rows <= tile) ++run;
    const SeenTile<G> seen(run, tile, smaller(tile + job.tile, job.end_key), 0, scratch);
    if (seen.any()) tile_scores<Products, G>(job, seen, scratch.queries, to);
    return seen;
  };
  SeenTile<G> seen = see(job.first_key, scores);
  for (Index tile = job.first_key; tile < job.end_key; tile += job.tile) {
    const SeenTile<G> now = seen;
    if (now.any()) {
      typename Products::template Tile<G> weights(job, now.run, tile, now.first, now.end, scores);
      soften_tile<G>(job, weights, 0, scratch);
      seen = see(tile + job.tile, next_scores);
      weights.add_values(job.part.weighted, scratch.more);
    } else {
      seen = see(tile + job.tile, next_scores);
    }
    float* const free = scores;
    scores = next_scores;
    next_scores = free;
  }
}

/// Adds all keys of the job, a tile at a time to one group of pairs after the other.
template <class Products>
inline void stream_groups(AttentionJob& job, const StreamScratch& scratch) {
  const Fetching fetching = job.fetching;
  job.next = job.tile;
  const StoredRun* run = find_run(job.runs, job.n_runs, job.first_key);
  for (Index first = job.first_key; first < job.end_key; first += job.tile) {
    const Index end = smaller(first + job.tile, job.end_key);
    while (run->first + run->rows <= first) ++run;
    Index pair = 0;
    for (Index left = job.n_pairs; left > 0;) {
      // Only the first pairs of a tile meet it in memory; the next ones find it in cache.
      job.fetching = pair == 0 ? fetching : Fetching::none;
      // Groups of nearly equal size: five pairs are three and two.
      const Index groups = (left + 3) / 4;
      const Index size = (left + groups - 1) / groups;
      with_group(size, [&]<unsigned G>() { stream_tile<Products, G>(job, run, first, end, pair, scratch); });
      pair += size;
      left -= size;
    }
  }
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
  job.tile = Products::tile_rows(d);
  if (Products::scores_ahead && job.n_pairs <= 4) {
    with_group(job.n_pairs, [&]<unsigned G>() { stream_ahead<Products, G>(job, scratch); });
  } else {
    stream_groups<Products>(job, scratch);
  }
  for (Index i = 0; i < job.n_pairs; ++i) job.part.sum[i] = horizontal_sum(load(sums + i * width));
}

}  // namespace TINYLLM_LEVEL
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
#endif
