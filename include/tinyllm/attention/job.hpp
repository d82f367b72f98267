// SPDX-License-Identifier: Apache-2.0
// AttentionJob: one kv head, a block of (query, head) pairs that share it, and a range of keys: what a kernel is given.
//
//     kernels.stream(job);     // leaves the softmax so far of each pair in job.part
//
// Internal. Units: positions for keys, elements for strides. Pair i of a head is query i / group, head i % group of the group,
// so that pairs which see the same keys lie together. Scores are kept in base 2: exp(x) = 2^(x · log2 e).
#pragma once

#include <tinyllm/core/cpu_level.hpp>
#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/simd_region.hpp>
#include <tinyllm/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace attention_detail {

/// Pairs of one job at most.
inline constexpr Index pair_block = 64;
/// Keys of one span: the softmax of each span begins afresh and spans merge in order, however they are shared out.
inline constexpr Index key_span = 512;
/// Keys that a kernel takes at a time at most, and those that it converts to float at a time.
inline constexpr Index longest_tile = 128;
inline constexpr Index converted_tile = 64;

inline constexpr float nothing = -std::numeric_limits<float>::infinity();

/// How streamed rows are asked for before they are needed.
enum class Fetching : std::uint8_t {
  none,   ///< the processor's own prefetchers do best
  ahead,  ///< each row, fetch_ahead bytes early: keys and values come in turns, and prefetchers would begin anew with each tile
  other,  ///< while keys are at work the tile's values, while values are at work the next keys: memory is never idle
};
inline constexpr Index fetch_ahead = 2048;

/// Floats that a row of d takes in scratch: whole vectors at every level.
constexpr Index padded(Index d) { return (d + 31) / 32 * 32; }

/// Rows of a tile, a power of two: what fits in some KB of keys and as much of values, so that they stay in the first level of
/// cache together with everything else. Each tile costs a softmax of its own, so longer ones pay where rows are asked for
/// ahead (Fetching::other); where they are not, a page of 4 KB is what the processor's prefetchers see at once.
constexpr Index tile_rows(Index row_bytes, bool fetched) {
  Index rows = longest_tile;
  while (rows > 8 && rows * row_bytes > (fetched ? 8192 : 4096)) rows /= 2;
  return rows;
}

/// Width of rows from which on Fetching::other pays, for elements of so many bytes.
constexpr Index fetch_from(std::size_t element) { return element == 4 ? 65 : 1; }

/// Consecutive stored rows of one head; `first` is the position of the first one.
struct StoredRun {
  const void* keys;
  const void* values;
  Index first;
  Index rows;
  const float* key_scales;  // of int8 rows
  const float* value_scales;
};

/// The softmax over some keys, unfinished.
/// Shape: maximum and sum are [pairs], weighted is [pairs, padded(d_value)]
struct Partial {
  float* maximum;   // of the scores, base 2; -inf if there was no key
  float* sum;       // Σ 2^(score − maximum)
  float* weighted;  // Σ 2^(score − maximum) · value
};

/// Floats that a Partial of `pairs` takes.
constexpr Index partial_size(Index pairs, Index d) { return pairs * padded(d) + 2 * pair_block; }
/// Lays a Partial out in memory.
inline Partial partial_at(float* memory) { return {memory, memory + pair_block, memory + 2 * pair_block}; }

/// Floats from one pair's scores of a tile to the next one's: kernels may write up to 15 behind the last.
inline constexpr Index score_stride = longest_tile + 16;

/// Floats that a query packed for a kernel takes at most.
constexpr Index packed_query(Index d) { return (d + 63) / 64 * 64 + 32; }

/// Floats of scratch that any kernel needs: q, converted keys and values, scores.
constexpr Index scratch_size(Index d) {
  return packed_query(d) * pair_block + padded(d) * 2 * converted_tile + score_stride * pair_block;
}

struct AttentionJob {
  const StoredRun* runs;
  Index n_runs;
  Index d;         // columns of a query and of a key
  Index d_value;   // columns of a value
  Index row;       // elements from one stored row to the next
  const float* q;  // query 0, first head of the group; heads follow one another
  Index q_stride;  // from query to query
  float scale;     // of the scores, log2 e included
  Index group;     // query heads that share the kv head
  Index first_pair;
  Index n_pairs;       // at most pair_block
  Index query_offset;  // position of query 0
  Index window;        // newest keys that a query sees
  Index rows;          // positions that there are
  Index first_key;     // a multiple of key_span
  Index end_key;
  Fetching fetching;
  bool packed = false;  // whether scratch still holds these queries, from another span of the same block
  Index tile = 0;       // keys of a tile, which the kernel chooses
  Index next = 0;       // from the values that are at work to the keys that are next, in positions
  Partial part;
  float* scratch;

  /// Keys [first_seen, end_seen) are seen by a pair of this block; both grow with `pair`.
  Index first_seen(Index pair) const {
    const Index first = query_offset + (first_pair + pair) / group + 1 - window;
    return first > 0 ? first : 0;
  }
  Index end_seen(Index pair) const {
    const Index end = query_offset + (first_pair + pair) / group + 1;
    return end < 0 ? 0 : end < rows ? end : rows;
  }
};

/// The kernels of one level for one storage type.
struct AttentionKernels {
  void (*stream)(const AttentionJob&);  // reads each stored tile once, for few pairs
  void (*block)(const AttentionJob&);   // converts each tile once, for many pairs; null
                                        // if `stream` is as fast for them
  void (*fold)(const Partial& total, const Partial& part, Index pairs, Index d);  // total = merge(total, part)
  Index split_width;  // columns of `stream`: 0 in order, else blocks of 2·width, even ones first
};

/// The kernels for a storage type. Defined in kernels.hpp.
/// Pre: this machine runs `level`
template <StorageType Dtype>
const AttentionKernels& attention_kernels(CpuLevel level);

}  // namespace attention_detail
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
