// SPDX-License-Identifier: Apache-2.0
// Integer products of int8 rows in plain code.
//
// Internal: what kernels_int8.hpp needs of a level.
#pragma once

#include <tinyllm/attention/job.hpp>
#include <tinyllm/core/simd_portable.hpp>
#include <tinyllm/core/simd_region.hpp>
#include <tinyllm/core/types.hpp>

#include <cstdint>

namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace portable {

// Integers that lie in float memory.
using StoredWord [[gnu::may_alias]] = std::int16_t;
using StoredInt [[gnu::may_alias]] = std::int32_t;

/// Rows that `dots` takes at a time.
inline constexpr Index rows_of_dots = 1;
/// The largest integer of a query, and how many units it has.
inline constexpr float query_levels = 16319.0F;
inline constexpr Index query_blocks = 1;

/// Columns [c, c + 64) of a query, integers in floats. Layout of packed: [d], 16 bits each
TINYLLM_INLINE void put_query(const float* rounded, float* packed, Index c) {
  StoredWord* out = reinterpret_cast<StoredWord*>(packed) + c;
  for (Index i = 0; i < 64; ++i) out[i] = static_cast<std::int16_t>(rounded[i]);
}
TINYLLM_INLINE void put_units(const float* units, const float*, float* packed) { packed[0] = units[0]; }

/// scores[g][i] = query g · row i times its scale, for G queries; up to 3 scores behind the last are overwritten.
template <unsigned G, bool fetches, class F>
TINYLLM_INLINE void dots(const std::int8_t* keys, const float* scales, Index rows, Index d, const float* q, Index q_stride,
                         float* scores, const F& fetched) {
  for (Index r = 0; r < (rows + width - 1) / width * width; ++r) {
    const Index at = r < rows ? r : rows - 1;
    const std::int8_t* row = keys + at * d;
    fetch<fetches>(fetched, r);
    for (unsigned g = 0; g < G; ++g) {
      const StoredWord* query = reinterpret_cast<const StoredWord*>(q + g * q_stride + 32);
      std::int32_t sum = 0;
      for (Index c = 0; c < d; ++c) sum += row[c] * query[c];
      scores[g * attention_detail::score_stride + r] = static_cast<float>(sum) * q[g * q_stride] * scales[at];
    }
  }
}

/// The weights of a tile's keys, numbers in [0, weight_levels].
inline constexpr float weight_levels = 32767.0F;
struct Weights {
  std::int16_t words[attention_detail::score_stride];
};

/// Weights [i, i + width), rounded.
TINYLLM_INLINE void put_weights(Lanes numbers, Index i, Weights& weights) {
  const IntVector whole = as_int(add(numbers, broadcast(8388608.0F)).v) & 0x7fff;  // adding it rounds to an integer
  for (Index k = 0; k < width; ++k) weights.words[i + k] = static_cast<std::int16_t>(whole[k]);
}
/// sums[g][c] (+)= Σ weight · value, as integers that lie in float memory; the weights begin at `offset` of the tile.
template <unsigned G, bool fetches, class F>
TINYLLM_INLINE void value_sums(const std::int8_t* values, Index rows, Index d, const Weights* weights, Index offset,
                               float* sums, Index stride, bool fresh, F) {
  for (unsigned g = 0; g < G; ++g) {
    StoredInt* to = reinterpret_cast<StoredInt*>(sums + g * stride);
    if (fresh) {
      for (Index c = 0; c < d; ++c) to[c] = 0;
    }
    for (Index r = 0; r < rows; ++r) {
      const std::int8_t* row = values + r * d;
      const std::int32_t weight = weights[g].words[offset + r];
      for (Index c = 0; c < d; ++c) to[c] += weight * row[c];
    }
  }
}

TINYLLM_INLINE Lanes to_float(const void* integers) {
  const StoredInt* from = static_cast<const StoredInt*>(integers);
  return {FloatVector{static_cast<float>(from[0]), static_cast<float>(from[1]), static_cast<float>(from[2]),
                      static_cast<float>(from[3])}};
}

}  // namespace portable
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
