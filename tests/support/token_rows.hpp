// SPDX-License-Identifier: Apache-2.0
// Token ids written into a cache as rows, and read back: which positions a sequence really holds.
//
//     append(cache, {3, 1, 4});            // a whole pass over every layer
//     CHECK(holds(cache, {3, 1, 4}));      // every element of every row, nothing more and nothing less
//
// Keys, values, layers, heads and columns all differ, so that a mix-up shows. Ids from 0 to 255, which every storage type
// holds exactly.
#pragma once

#include <tinyllm/cache/chunk_view.hpp>
#include <tinyllm/core/types.hpp>

#include <span>
#include <vector>

namespace test_support {

using tinyllm::Index;
using tinyllm::TokenId;

/// What is stored for an id: 128 numbers that differ with layer, head and column, the sign says whether it is a value.
inline float stored_element(bool key, Index layer, Index head, Index column, TokenId id) {
  const Index mixed = (static_cast<Index>(id) + 3 * layer + 5 * head + 7 * column) % 128 + 1;
  return static_cast<float>(key ? mixed : -mixed);
}

/// One layer's rows for some ids.
class TokenRows {
 public:
  TokenRows(const auto& dims, Index layer, std::span<const TokenId> ids)
      : shape_{.batch = 1, .heads = dims.n_kv_heads, .tokens = static_cast<Index>(ids.size()), .d = dims.d_head} {
    for (Index h = 0; h < shape_.heads; ++h) {
      for (const TokenId id : ids) {
        for (Index c = 0; c < shape_.d; ++c) {
          keys_.push_back(stored_element(true, layer, h, c, id));
          values_.push_back(stored_element(false, layer, h, c, id));
        }
      }
    }
  }
  tinyllm::ChunkView keys() const { return {keys_.data(), shape_}; }
  tinyllm::ChunkView values() const { return {values_.data(), shape_}; }

 private:
  tinyllm::ChunkShape shape_;
  std::vector<float> keys_;
  std::vector<float> values_;
};

template <class Cache>
void append_layer(Cache& cache, Index layer, std::span<const TokenId> ids) {
  const TokenRows rows(cache.dims(), layer, ids);
  cache.update(layer, rows.keys(), rows.values());
}

template <class Cache>
void append(Cache& cache, std::span<const TokenId> ids) {
  for (Index layer = 0; layer < cache.dims().n_layers; ++layer) append_layer(cache, layer, ids);
}
template <class Cache>
void append(Cache& cache, const std::vector<TokenId>& ids) {
  append(cache, std::span(ids));
}

/// Whether a view shows the rows of these ids.
template <class View>
bool shows(const View& view, Index layer, std::span<const TokenId> ids) {
  if (view.rows() != static_cast<Index>(ids.size())) return false;
  for (Index h = 0; h < view.n_heads(); ++h) {
    std::size_t position = 0;
    for (Index i = 0; i < view.n_segments(); ++i) {
      const auto segment = view.segment(0, h, i);
      for (Index row = 0; row < segment.rows; ++row, ++position) {
        for (Index c = 0; c < view.d_head(); ++c) {
          const Index at = row * view.d_head() + c;
          if (static_cast<float>(segment.keys[at]) != stored_element(true, layer, h, c, ids[position])) return false;
          if (static_cast<float>(segment.values[at]) != stored_element(false, layer, h, c, ids[position])) return false;
        }
      }
    }
    if (position != ids.size()) return false;
  }
  return true;
}

template <class Cache>
bool holds(const Cache& cache, std::span<const TokenId> ids) {
  if (cache.seq_len() != static_cast<Index>(ids.size())) return false;
  for (Index layer = 0; layer < cache.dims().n_layers; ++layer) {
    if (!shows(cache.view(layer), layer, ids)) return false;
  }
  return true;
}
template <class Cache>
bool holds(const Cache& cache, const std::vector<TokenId>& ids) {
  return holds(cache, std::span(ids));
}

}  // namespace test_support
