// SPDX-License-Identifier: Apache-2.0
// What the library asks of a cache, so that a caller's own cache fits wherever the library's do.
//
//     static_assert(tinyllm::SequenceCache<MyCache>);      // enough for generate
//     static_assert(tinyllm::AttentionCache<MyCache>);     // enough for a model that calls update
#pragma once

#include <tinyllm/cache/chunk_view.hpp>
#include <tinyllm/core/types.hpp>

#include <concepts>

namespace tinyllm {

/// A cache that knows its length, the positions to come, and how to go back.
template <class C>
concept SequenceCache = requires(C& cache, const C& constant, Index n) {
  { constant.seq_len() } -> std::convertible_to<Index>;
  { constant.capacity() } -> std::convertible_to<Index>;
  { constant.positions(n) } -> std::convertible_to<Positions>;
  cache.truncate(n);
};

/// A cache that a layer can put its keys and values into.
template <class C>
concept AttentionCache = SequenceCache<C> && requires(C& cache, Index layer, const ChunkView& chunk) {
  cache.update(layer, chunk, chunk);
};

/// A cache that keeps nothing from pass to pass (`C::keeps_nothing`): each forward call sees every known token.
template <class C>
concept RecomputesEverything = C::keeps_nothing;

}  // namespace tinyllm
