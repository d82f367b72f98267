// SPDX-License-Identifier: Apache-2.0
// A pool of scores that filters make smaller: where its order ends that holds k scores, or a share of the weight.
//
//     pool.set(scores, kernels);
//     Prefix best = pool.prefix(nullptr, 40, pool.reached_by(40), kernels);           // the 40 highest
//
// Internal. Nothing is sorted but a few scores around the end of the prefix, found by measuring what lies above some bounds.
#pragma once

#include <tinyllm/core/simd_region.hpp>
#include <tinyllm/core/types.hpp>
#include <tinyllm/sampling/score_blocks.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace sampler_detail {

/// So many scores are sorted rather than measured.
inline constexpr Index few = 256;

inline float next_above(float x) { return std::nextafter(x, std::numeric_limits<float>::infinity()); }
inline float next_below(float x) { return std::nextafter(x, -std::numeric_limits<float>::infinity()); }

/// All scores of at least `cut`.
inline Prefix all_from(float cut) { return {cut, next_above(cut), std::numeric_limits<Index>::max() / 2}; }

/// The smallest float that is at least x, and above -inf.
inline float first_from(double x) {
  constexpr float lowest = std::numeric_limits<float>::lowest();
  if (!(x > static_cast<double>(lowest))) return lowest;
  const auto near = static_cast<float>(x);
  return static_cast<double>(near) < x ? next_above(near) : near;
}

/// Floats as integers in the same order.
inline std::int64_t place_of(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto magnitude = static_cast<std::int64_t>(bits & 0x7fffffffU);
  return bits >> 31U != 0 ? -magnitude : magnitude;
}
inline float at_place(std::int64_t place) {
  const auto magnitude = static_cast<std::uint32_t>(place < 0 ? -place : place);
  return std::bit_cast<float>(place < 0 ? magnitude | 0x80000000U : magnitude);
}

/// The scores of a block that is not whole, and -inf.
using Tail = std::array<float, static_cast<std::size_t>(block)>;

/// The scores as blocks, the last ones copied to `tail`.
inline ScoreBlocks blocks_of(std::span<const float> scores, Tail& tail) {
  const auto size = static_cast<Index>(scores.size());
  const Index whole = size / block;
  tail.fill(-std::numeric_limits<float>::infinity());
  std::copy(scores.begin() + whole * block, scores.end(), tail.begin());
  return {scores.data(), tail.data(), whole, (size + block - 1) / block};
}

class ScorePool {
 public:
  /// Invalidates: the scores must stay until the next call
  void set(std::span<const float> scores, const SamplingKernels& kernels) {
    size_ = static_cast<Index>(scores.size());
    blocks_ = blocks_of(scores, tail_);
    maxima_.resize(static_cast<std::size_t>(blocks_.count));
    highest_ = kernels.highest(blocks(), maxima_.data()).score;
  }

  /// Scores that are there.
  Index size() const { return size_; }
  /// -inf if there is nothing to choose
  float highest() const { return highest_; }
  float operator[](Index i) const { return blocks_.scores[i]; }
  ScoreBlocks blocks() const { return {blocks_.scores, tail_.data(), blocks_.whole, blocks_.count}; }
  const float* maxima() const { return maxima_.data(); }

  /// A score that at least n scores reach, or -inf; near the n-th highest if that is easy to say.
  float reached_by(Index n) {
    if (n > blocks_.count) return -std::numeric_limits<float>::infinity();
    order_.assign(maxima_.begin(), maxima_.end());
    std::nth_element(order_.begin(), order_.begin() + (n - 1), order_.end(), std::greater<>());
    return order_[static_cast<std::size_t>(n - 1)];
  }

  /// The smallest beginning of the order whose weights reach `target`, or whose number does if `weights` is null. All from
  /// `low` if they do not; at least one.
  /// Pre: low <= highest(), and lies at or below the end that is looked for
  Prefix prefix(const float* weights, double target, float low, const SamplingKernels& kernels) {
    found_.resize(static_cast<std::size_t>(few + group));
    float high = highest_;
    double above = 0;  // what lies above `high`
    for (int round = 0;; ++round) {
      const Index n = kernels.collect(blocks(), maxima(), all_from(low), high, few, found_.data());
      if (n <= few) return end_among(n, weights, target, above, high);
      if (low == high) return end_among_equals(weights, target, above, low, kernels);
      if (!narrow(weights, target, round, low, high, above, kernels)) return all_from(low);
    }
  }

 private:
  struct Found {
    float score;
    TokenId index;
  };

  static constexpr Index even_steps = n_bounds - 2;

  // Makes [low, high] about even_steps times as narrow; false if all from `low` do not reach the target.
  bool narrow(const float* weights, double target, int round, float& low, float& high, double& above,
              const SamplingKernels& kernels) const {
    std::array<float, n_bounds> bounds;
    std::array<double, n_bounds> reached;
    // Two of the bounds are about a score that is there: of many equal ones, a few rounds may find no other.
    bounds[0] = (*this)[found_.front()];
    bounds[1] = next_above(bounds[0]);
    for (Index step = 1; step <= even_steps; ++step) {
      bounds[static_cast<std::size_t>(step + 1)] = step == even_steps ? high : between(low, high, step, round);
    }
    std::sort(bounds.begin(), bounds.end());
    kernels.measure(blocks(), maxima(), weights, bounds.data(), reached.data());
    for (std::size_t j = bounds.size(); j-- > 0;) {
      if (reached[j] >= target) {
        low = std::max(low, bounds[j]);
        return true;
      }
      if (bounds[j] <= low) return false;
      above = reached[j];
      high = next_below(bounds[j]);
    }
    return true;
  }

  // Even steps of scores; of floats after some rounds, lest scores of all sizes take hundreds of them.
  static float between(float low, float high, Index step, int round) {
    constexpr int rounds = 8;
    if (round < rounds) {
      const double width = static_cast<double>(high) - static_cast<double>(low);
      return static_cast<float>(std::fma(width, static_cast<double>(step) / even_steps, static_cast<double>(low)));
    }
    return at_place(place_of(low) + (place_of(high) - place_of(low)) * step / even_steps);
  }

  Prefix end_among(Index n, const float* weights, double target, double above, float high) {
    sorted_.clear();
    sorted_.reserve(static_cast<std::size_t>(few));
    for (Index i = 0; i < n; ++i) {
      const TokenId index = found_[static_cast<std::size_t>(i)];
      sorted_.push_back({(*this)[index], index});
    }
    std::sort(sorted_.begin(), sorted_.end(),
              [](const Found& a, const Found& b) { return a.score > b.score || (a.score == b.score && a.index < b.index); });
    Prefix end = all_from(next_above(high));
    double sum = above;
    for (const Found& next : sorted_) {
      if (sum >= target && sum > 0) break;
      sum += weights == nullptr ? 1.0 : static_cast<double>(weights[next.index]);
      end = {next.score, next_above(next.score), next.index};
    }
    return end;
  }

  Prefix end_among_equals(const float* weights, double target, double above, float score,
                          const SamplingKernels& kernels) const {
    const double weight = weights == nullptr ? 1.0 : static_cast<double>(weights[found_.front()]);
    const double n = std::clamp(std::ceil((target - above) / weight), 1.0, static_cast<double>(size_));
    return {score, next_above(score), kernels.nth_equal(blocks(), maxima(), score, static_cast<Index>(n))};
  }

  ScoreBlocks blocks_ = {};
  Tail tail_ = {};
  Index size_ = 0;
  float highest_ = 0;
  std::vector<float> maxima_;
  std::vector<float> order_;
  std::vector<TokenId> found_;
  std::vector<Found> sorted_;
};

}  // namespace sampler_detail
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
