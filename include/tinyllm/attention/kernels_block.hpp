// SPDX-License-Identifier: Apache-2.0
// The kernel for many queries at a time: each tile of keys and values becomes float once and serves a whole block of pairs.
//
//     avx2::block<Eigen::half>(job);
//
// Internal, and empty unless TINYLLM_LEVEL is defined, like kernels_common.hpp (no #pragma once). Queries lie in the lanes of
// the vectors, so the softmax needs no sums across lanes.
#ifdef TINYLLM_LEVEL
namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace TINYLLM_LEVEL {

/// Rows of a tile as floats.
struct FloatRows {
  const float* data;
  Index stride;
};

/// Keys or values [first, first + n) as floats: where they are if they are floats in one run, else converted to `scratch`.
template <class Dtype, const void* StoredRun::*Side, const float* StoredRun::*Scales>
inline FloatRows float_rows(const StoredRun* run, Index first, Index n, Index row, Index d, float* scratch) {
  if constexpr (sizeof(Dtype) == sizeof(float)) {
    if (first + n <= run->first + run->rows) return {static_cast<const float*>(run->*Side) + (first - run->first) * row, row};
  }
  const Index stride = attention_detail::padded(d);
  float* out = scratch;
  for_each_run(run, first, first + n, [&](const StoredRun& at, Index position, Index rows) {
    const Dtype* from = static_cast<const Dtype*>(at.*Side) + (position - at.first) * row;
    for (Index r = 0; r < rows; ++r, from += row, out += stride) {
      const auto put = [&](Index c, const Dtype* numbers) {
        if constexpr (sizeof(Dtype) == 1) {
          store(out + c, multiply(load_stored(numbers), broadcast((at.*Scales)[position - at.first + r])));
        } else {
          store(out + c, load_stored(numbers));
        }
      };
      Index c = 0;
      for (; c + width <= d; c += width) put(c, from + c);
      if (c < d) {
        alignas(64) unsigned char bytes[sizeof(Dtype) * static_cast<std::size_t>(width)] = {};
        __builtin_memcpy(bytes, from + c, static_cast<std::size_t>(d - c) * sizeof(Dtype));
        put(c, reinterpret_cast<const Dtype*>(bytes));
      }
    }
  });
  return {scratch, stride};
}

/// Scores of a tile, keys as rows and pairs as lanes, become weights; pairs' sums so far are rescaled.
/// Shape: scores [n, pair_block]
inline void soften_lanes(float* scores, Index n, Index lanes, const Partial& part, Index n_pairs, Index stride) {
  alignas(64) float factors[pair_block];
  for (Index i = 0; i < lanes; i += width) {
    float* column = scores + i;
    const Lanes before = load(part.maximum + i);
    Lanes highest = before;
    for (Index r = 0; r < n; ++r) highest = maximum(load(column + r * pair_block), highest);
    const Lanes base = maximum(broadcast(-3.402823466e38F), highest);
    Lanes sum = zero();
    for (Index r = 0; r < n; ++r) {
      const Lanes weight = exp2(subtract(load(column + r * pair_block), base));
      store(column + r * pair_block, weight);
      sum = add(sum, weight);
    }
    const Lanes factor = exp2(subtract(before, base));
    store(factors + i, factor);
    store(part.maximum + i, highest);
    store(part.sum + i, fma(load(part.sum + i), factor, sum));
  }
  for (Index i = 0; i < n_pairs; ++i) {
    if (factors[i] != 1.0F) scale_row(part.weighted + i * stride, stride, factors[i]);
  }
}

/// Adds one tile of float values to the pairs' sums, four pairs at a time.
template <unsigned G>
inline void add_values(const FloatRows& values, Index d, const float* weights, const Index* first, const Index* end,
                       float* sums, Index stride) {
  for_seen<G>(first, end, [&]<unsigned Count>(unsigned g, Index seen, Index seen_end) {
    if (seen >= seen_end) return;
    outer_floats<Count>(values.data + seen * values.stride, values.stride, seen_end - seen, d,
                        {weights + seen * pair_block + g, 1, pair_block}, sums + g * stride, stride);
  });
}

/// The same for no more pairs than a vector has lanes: eight keys at a time.
inline void multiply_keys_by_one_vector(const FloatRows& keys, Index n, Index d, const float* queries, float* scores) {
  for (Index r = 0; r < n; r += 8) {
    const float* row[8];
    Lanes sum[8];
    for (Index i = 0; i < 8; ++i) {
      row[i] = keys.data + smaller(r + i, n - 1) * keys.stride;
      sum[i] = zero();
    }
    for (Index c = 0; c < d; ++c) {
      const Lanes x = load(queries + c * pair_block);
      TINYLLM_UNROLL
      for (Index i = 0; i < 8; ++i) sum[i] = fma(broadcast(row[i][c]), x, sum[i]);
    }
    for (Index i = 0; i < smaller(n - r, 8); ++i) store(scores + (r + i) * pair_block, sum[i]);
  }
}

/// scores[key][pair] = key · query, queries [d, pair_block].
inline void multiply_keys(const FloatRows& keys, Index n, Index d, const float* queries, Index lanes, float* scores) {
  if (lanes == width) return multiply_keys_by_one_vector(keys, n, d, queries, scores);
  Index r = 0;
  for (; r + 4 <= n; r += 4) {
    outer_floats<4, Into::fresh>(queries, pair_block, d, lanes, {keys.data + r * keys.stride, keys.stride, 1},
                                 scores + r * pair_block, pair_block);
  }
  for (; r < n; ++r) {
    outer_floats<1, Into::fresh>(queries, pair_block, d, lanes, {keys.data + r * keys.stride, keys.stride, 1},
                                 scores + r * pair_block, pair_block);
  }
}

template <class Dtype>
inline void block(const AttentionJob& job) {
  const Index d = job.d;
  const Index stride = attention_detail::padded(d);
  float* queries = job.scratch;                     // [d, pair_block]
  float* key_rows = queries + stride * pair_block;  // [converted_tile, padded(d)]
  float* value_rows = key_rows + stride * attention_detail::converted_tile;
  float* scores = value_rows + stride * attention_detail::converted_tile;  // [converted_tile, pair_block]
  const Index sum_stride = attention_detail::padded(job.d_value);
  const Index n_pairs = job.n_pairs;
  const Index lanes = n_pairs <= width ? width : (n_pairs + pair_width - 1) / pair_width * pair_width;
  clear(job.part, pair_block, 0);
  clear(job.part, n_pairs, job.d_value);
  if (job.first_key >= job.end_key) return;
  Index first[pair_block];
  Index end[pair_block];
  Index first_seen[pair_block];
  Index end_seen[pair_block];
  for (Index i = 0; i < pair_block; ++i) {
    first_seen[i] = job.first_seen(i);
    end_seen[i] = job.end_seen(i);
    if (i >= n_pairs) {
      for (Index c = 0; c < d; ++c) queries[c * pair_block + i] = 0.0F;
      continue;
    }
    const Index pair = job.first_pair + i;
    const float* q = job.q + pair / job.group * job.q_stride + pair % job.group * d;
    for (Index c = 0; c < d; ++c) queries[c * pair_block + i] = q[c] * job.scale;
  }
  const StoredRun* run = find_run(job.runs, job.n_runs, job.first_key);
  for (Index tile = job.first_key; tile < job.end_key; tile += attention_detail::converted_tile) {
    const Index n = smaller(attention_detail::converted_tile, job.end_key - tile);
    while (run->first + run->rows <= tile) ++run;
    bool any = false;
    bool all = true;
    for (Index i = 0; i < n_pairs; ++i) {
      first[i] = larger(first_seen[i] - tile, 0);
      end[i] = smaller(end_seen[i] - tile, n);
      any = any || first[i] < end[i];
      all = all && first[i] == 0 && end[i] == n;
    }
    if (!any) continue;
    const FloatRows keys = float_rows<Dtype, &StoredRun::keys, &StoredRun::key_scales>(run, tile, n, job.row, d, key_rows);
    multiply_keys(keys, n, d, queries, lanes, scores);
    if (!all) {
      for (Index r = 0; r < n; ++r) {
        for (Index i = 0; i < n_pairs; ++i) {
          if (r < first[i] || r >= end[i]) scores[r * pair_block + i] = nothing;
        }
      }
    }
    soften_lanes(scores, n, lanes, job.part, n_pairs, sum_stride);
    // One row may be both key and value.
    const FloatRows values = run->keys == run->values ? keys
                                                      : float_rows<Dtype, &StoredRun::values, &StoredRun::value_scales>(
                                                            run, tile, n, job.row, job.d_value, value_rows);
    Index pair = 0;
    for (; pair + 4 <= n_pairs; pair += 4) {
      add_values<4>(values, job.d_value, scores + pair, first + pair, end + pair, job.part.weighted + pair * sum_stride,
                    sum_stride);
    }
    for (; pair < n_pairs; ++pair) {
      add_values<1>(values, job.d_value, scores + pair, first + pair, end + pair, job.part.weighted + pair * sum_stride,
                    sum_stride);
    }
  }
}

}  // namespace TINYLLM_LEVEL
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
#endif
