// SPDX-License-Identifier: Apache-2.0
// FloatProducts: scores and weighted sums over stored rows that become float in registers, once for each level.
//
//     stream<FloatProducts<Eigen::half>>(job);
//
// Internal, and empty unless TINYLLM_LEVEL is defined, like kernels_common.hpp (no #pragma once).
#ifdef TINYLLM_LEVEL
namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace TINYLLM_LEVEL {

/// Rows that share each load of a query.
inline constexpr unsigned rows_at_once = n_registers >= 32 ? 1 : 2;

/// sum[i][g] += q[g] · rows[i], lane by lane. `Width` is d where it is known when compiling, else 0.
template <class Dtype, unsigned G, unsigned Width>
TINYLLM_INLINE void add_products(const Dtype* const* rows, Index d, const float* q, Index q_stride, Lanes (*sum)[G]) {
  Lanes x[rows_at_once][2];
  const auto add = [&](Index c) {
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) {
      const Lanes a = load(q + g * q_stride + c);
      const Lanes b = load(q + g * q_stride + c + width);
      TINYLLM_UNROLL
      for (unsigned i = 0; i < rows_at_once; ++i) sum[i][g] = fma(x[i][0], a, sum[i][g]);
      TINYLLM_UNROLL
      for (unsigned i = 0; i < rows_at_once; ++i) sum[i][g] = fma(x[i][1], b, sum[i][g]);
    }
  };
  if constexpr (Width != 0) {
    TINYLLM_UNROLL
    for (unsigned c = 0; c < Width; c += pair_width) {
      TINYLLM_UNROLL
      for (unsigned i = 0; i < rows_at_once; ++i) load_pair(rows[i] + c, x[i][0], x[i][1]);
      add(c);
    }
  } else {
    const Index whole = d / pair_width * pair_width;
    for (Index c = 0; c < whole; c += pair_width) {
      TINYLLM_UNROLL
      for (unsigned i = 0; i < rows_at_once; ++i) load_pair(rows[i] + c, x[i][0], x[i][1]);
      add(c);
    }
    if (whole < d) {
      TINYLLM_UNROLL
      for (unsigned i = 0; i < rows_at_once; ++i) load_pair_part(rows[i] + whole, d - whole, x[i][0], x[i][1]);
      add(whole);
    }
  }
}

/// scores[g][row] = q[g] · key row, for G queries; rows go in sequence and four of them end in one reduction.
/// Up to three scores behind the last are overwritten.
template <class Dtype, unsigned G, unsigned Width, bool fetches>
inline void dot_rows(const Dtype* keys, Index rows, Index stride, Index d, const float* q, Index q_stride, float* scores,
                     const Fetch& fetched) {
  for (Index r = 0; r < rows; r += 4) {
    fetch<fetches>(fetched, r / 4);
    Lanes sums[4][G];
    TINYLLM_UNROLL
    for (unsigned i = 0; i < 4; i += rows_at_once) {
      const Dtype* row[rows_at_once];
      Lanes sum[rows_at_once][G];
      TINYLLM_UNROLL
      for (unsigned j = 0; j < rows_at_once; ++j) {
        row[j] = keys + smaller(r + i + j, rows - 1) * (Width != 0 ? Index{Width} : stride);
        TINYLLM_UNROLL
        for (unsigned g = 0; g < G; ++g) sum[j][g] = zero();
      }
      add_products<Dtype, G, Width>(row, d, q, q_stride, sum);
      TINYLLM_UNROLL
      for (unsigned j = 0; j < rows_at_once; ++j) {
        TINYLLM_UNROLL
        for (unsigned g = 0; g < G; ++g) sums[i + j][g] = sum[j][g];
      }
    }
    TINYLLM_UNROLL
    for (unsigned g = 0; g < G; ++g) {
      store_sums(sums[0][g], sums[1][g], sums[2][g], sums[3][g], scores + g * attention_detail::score_stride + r);
    }
  }
}

/// The products of `stream` for a floating type.
template <class Dtype>
struct FloatProducts {
  /// Whether stream_ahead pays. (It costs 5 to 8 % over rows of 64 columns, and gains 3 over some of 128.)
  static constexpr bool scores_ahead = false;

  static constexpr Index row_bytes(Index d) { return d * Index{sizeof(Dtype)}; }
  static Index tile_rows(Index d) {
    return attention_detail::tile_rows(row_bytes(d), d >= attention_detail::fetch_from(sizeof(Dtype)));
  }
  static Index query_floats(Index d) { return attention_detail::padded(d); }

  /// A query, scaled, its columns in the order in which load_pair gives a key's.
  static void pack(const float* q, Index d, float scale, float* packed) {
    for (Index c = 0; c < query_floats(d); ++c) packed[c] = 0.0F;
    for (Index c = 0; c < d; ++c) {
      const Index within = c % pair_width;
      packed[splits_pairs<Dtype> ? c - within + within % 2 * width + within / 2 : c] = q[c] * scale;
    }
  }

  /// scores[g][i] = query g · key row + i, for G queries.
  template <unsigned G>
  TINYLLM_INLINE static void scores(const AttentionJob& job, const StoredRun& run, Index row, Index n, const float* q,
                                    float* scores) {
    const Index d = job.d;
    const Dtype* keys = static_cast<const Dtype*>(run.keys) + row * job.row;
    const Fetch fetched = fetch_with_keys(job.fetching, run, row, row_bytes(job.row), 4);
    with_width(d, job.row, [&]<unsigned Width>() {
      if (fetched.bytes == 0) {
        dot_rows<Dtype, G, Width, false>(keys, n, job.row, d, q, query_floats(d), scores, fetched);
      } else {
        dot_rows<Dtype, G, Width, true>(keys, n, job.row, d, q, query_floats(d), scores, fetched);
      }
    });
  }

  /// The weights of G pairs for the keys [first[g], end[g]) of the tile that begins at position `tile`.
  template <unsigned G>
  struct Tile {
    const AttentionJob& job;
    const StoredRun* run;
    Index tile;
    const Index* first;
    const Index* end;
    float* weights;

    TINYLLM_INLINE Tile(const AttentionJob& the_job, const StoredRun* first_run, Index first_key, const Index* firsts,
                        const Index* ends, float* scores)
        : job(the_job), run(first_run), tile(first_key), first(firsts), end(ends), weights(scores) {}

    /// The scores become weights 2^(score − maximum), those of keys that a pair does not see 0. `maximum` and `sums` are those
    /// so far, sums lane by lane; factors[g] is for what pair g has summed up before. Meanwhile `fetched` is asked for, `width`
    /// keys a step.
    TINYLLM_INLINE void soften(float* maximum, float* sums, float* factors, const Fetch& fetched = {nullptr, 0}) const {
      const Index n = (end[G - 1] + width - 1) / width * width;
      Lanes highest[G];
      hide_unseen<G>(weights, n, first, end);
      highest_scores<G>(weights, n, highest);
      Lanes base[G];
      Lanes sum[G];
      TINYLLM_UNROLL
      for (unsigned g = 0; g < G; ++g) {
        sum[g] = load(sums + g * width);
        factors[g] = 1.0F;
        if (any_above(highest[g], broadcast(maximum[g]))) {
          const float before = maximum[g];
          maximum[g] = horizontal_maximum(highest[g]);
          float of_before[width];
          store(of_before, exp2(broadcast(before - larger(maximum[g], lowest_score))));
          factors[g] = of_before[0];
          sum[g] = multiply(sum[g], broadcast(factors[g]));
        }
        base[g] = broadcast(larger(maximum[g], lowest_score));  // where nothing is seen, −inf − base is −inf still
      }
      for (Index i = 0; i < n; i += width) {
        fetch<true>(fetched, i / width);
        TINYLLM_UNROLL
        for (unsigned g = 0; g < G; ++g) {
          float* at = weights + g * attention_detail::score_stride + i;
          const Lanes weight = exp2(subtract(load(at), base[g]));
          store(at, weight);
          sum[g] = add(sum[g], weight);
        }
      }
      TINYLLM_UNROLL
      for (unsigned g = 0; g < G; ++g) store(sums + g * width, sum[g]);
    }

    /// sums[g] += Σ weight · value
    TINYLLM_INLINE void add_values(float* sums, float*) const {
      const Index d = job.d_value;
      const Index stride = attention_detail::padded(d);
      for_seen_runs<G>(run, tile, first, end, [&]<unsigned Count>(unsigned g, const StoredRun& at, Index position, Index n) {
        const Index row = position - at.first;
        outer_rows<Dtype, Count, Into::sum>(
            static_cast<const Dtype*>(at.values) + row * job.row, job.row, n, d,
            {weights + g * attention_detail::score_stride + (position - tile), attention_detail::score_stride, 1},
            sums + g * stride, stride, [&](Index from, Index count) {
              return fetch_with_values(job, at, position, n, row_bytes(job.row), row_bytes(from), row_bytes(count));
            });
      });
    }
  };
};

}  // namespace TINYLLM_LEVEL
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
#endif
