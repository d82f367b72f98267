// SPDX-License-Identifier: Apache-2.0
// What the sampling kernels are given: scores in blocks, the softmax over them, and a beginning of their order.
//
//     Highest top = kernels.highest(blocks, maxima);        // maxima[b] lets later passes leave out whole blocks
//
// Internal. The order of scores: the highest first, the lowest index first on a tie; every filter keeps a beginning of it.
// A kernel sums 16 lanes over a block, the lanes pairwise, and the blocks one after the other in double, so that every
// level gets the same bits.
#pragma once

#include <tinyllm/core/simd_region.hpp>
#include <tinyllm/core/types.hpp>

namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace sampler_detail {

/// Scores of one block.
inline constexpr Index block = 256;
/// Lanes over which a block is summed, at every level.
inline constexpr Index group = 16;
/// Bounds that one pass measures.
inline constexpr Index n_bounds = 8;

/// exp of less than this is no weight at all; above it, weights are normal floats.
inline constexpr float least_exponent = -87.0F;

/// Scores, whole blocks where they lie and the rest in a block of its own that -inf fills up.
struct ScoreBlocks {
  const float* scores;
  const float* tail;
  Index whole;  // blocks of `scores`
  Index count;  // blocks, with the tail
};

/// The highest score and the first block that has it.
struct Highest {
  float score;
  Index block;
};

/// The weight of a score of at least `cut` is exp((score - highest) · scale); that of any other is 0.
struct Softmax {
  float highest;
  float scale;
  float cut;
};

/// Σ weight and Σ weight · (score - highest) · scale
struct Sums {
  double weights;
  double weighted;
};

/// The beginning of the order that ends with the score `cut` at the index `last`; `above` is the next float after `cut`.
struct Prefix {
  float cut;
  float above;
  Index last;
};

/// The kernels of one level. Blocks of `maxima` below what is looked for are not read.
struct SamplingKernels {
  /// maxima[b]: the highest score of a block, -inf if none is a number; may be null.
  Highest (*highest)(const ScoreBlocks& x, float* maxima);
  /// Σ weight
  double (*sum)(const ScoreBlocks& x, const Softmax& softmax);
  /// weights[i] and sums[b], the weights of a block
  Sums (*weigh)(const ScoreBlocks& x, const Softmax& softmax, float* weights, float* sums);
  /// sums[b] and the weights of what a prefix keeps; blocks whose sum is 0 may hold old weights.
  /// Pre: in the block of `prefix.last`, what is equal to the cut and behind it has no weight
  Sums (*keep)(const ScoreBlocks& x, const float* maxima, const Softmax& softmax, const Prefix& prefix, float* weights,
               float* sums);
  /// out[j]: the sum of the weights, or the number if `weights` is null, of the scores of at least bounds[j], which ascend
  void (*measure)(const ScoreBlocks& x, const float* maxima, const float* weights, const float* bounds, double* out);
  /// The indices, rising, of what a prefix keeps and is at most `highest`; stops beyond `limit` of them.
  /// Pre: `out` has room for limit + group
  Index (*collect)(const ScoreBlocks& x, const float* maxima, const Prefix& prefix, float highest, Index limit, TokenId* out);
  /// The index of the n-th score that is equal to this one, counted from 1; behind all of them if there are less.
  Index (*nth_equal)(const ScoreBlocks& x, const float* maxima, float score, Index n);
};

}  // namespace sampler_detail
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
