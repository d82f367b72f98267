// SPDX-License-Identifier: Apache-2.0
// FilledCache: a cache as it is after s positions, to be walked layer after layer as decoding does.
#pragma once

#include "suite.hpp"

#include <tinyllm/cache/kv_cache.hpp>
#include <tinyllm/core/executor.hpp>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace bench {

struct Shape {
  const char* name;
  Index n_heads;
  Index n_kv_heads;
  Index d_head;
  Index query_width() const { return n_heads * d_head; }
};
inline constexpr Shape shapes[] = {{"9-3x64", 9, 3, 64}, {"32-8x128", 32, 8, 128}};
inline constexpr Shape lone_heads[] = {{"3-3x64", 3, 3, 64}, {"8-8x128", 8, 8, 128}};

/// Far more than any cache of a processor holds.
inline constexpr Index working_set = Index{256} << 20;
/// Measured at a time: a millisecond is seldom interrupted, while the whole nearly always is where others work as well.
inline constexpr Index piece_bytes = Index{8} << 20;

/// Which way of reading is fastest depends on the processor.
enum class Reading {
  in_order,  ///< a head's keys, then its values
  ahead,     ///< the same, each line asked for ahead of time
  in_turn,   ///< a page of keys, a page of values
};

inline constexpr Index line = 64;

/// Reads whole lines once, in order; `ahead`: asks for each line ahead of time.
template <bool ahead>
std::uint64_t read_bytes(const char* from, Index n) {
  using Vector = std::uint64_t __attribute__((vector_size(16)));
  Vector sum[4] = {};
  for (Index i = 0; i < n; i += line) {
    if constexpr (ahead) __builtin_prefetch(from + i + 2048);
    const auto* p = reinterpret_cast<const Vector*>(from + i);
    for (Index j = 0; j < 4; ++j) sum[j] ^= p[j];
  }
  sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
  return sum[0][0] ^ sum[0][1];
}

template <class Dtype>
class FilledCache {
 public:
  FilledCache(const Shape& shape, Index s, Index n_layers, Index layers_a_piece)
      : layers_a_piece_(layers_a_piece),
        cache_({.n_layers = n_layers, .n_kv_heads = shape.n_kv_heads, .d_head = shape.d_head, .max_len = s}) {
    const Index chunk = std::min<Index>(s, 1024);
    const RowMatrix keys = 2 * RowMatrix::Random(chunk, shape.n_kv_heads * shape.d_head);
    const RowMatrix values = RowMatrix::Random(chunk, shape.n_kv_heads * shape.d_head);
    using tinyllm::ChunkView;
    for (Index layer = 0; layer < n_layers; ++layer) {
      for (Index first = 0; first < s; first += chunk) {
        cache_.update(layer, ChunkView::from_projection(keys, shape.n_kv_heads),
                      ChunkView::from_projection(values, shape.n_kv_heads));
      }
    }
    for (Index layer = 0; layer < n_layers; ++layer) {
      for (Index head = 0; head < shape.n_kv_heads; ++head) {
        const auto segment = cache_.view(layer).segment(0, head, 0);
        heads_.push_back({reinterpret_cast<const char*>(segment.keys), reinterpret_cast<const char*>(segment.values)});
      }
    }
    part_bytes_ = s * shape.d_head * Index{sizeof(Dtype)};
  }

  tinyllm::KVView<Dtype> view(Index layer) const { return cache_.view(layer); }
  /// A piece is some layers, so many that reading them takes a measurable time.
  Index n_pieces() const { return cache_.dims().n_layers / layers_a_piece_; }
  Index layers_a_piece() const { return layers_a_piece_; }
  /// Positions of a piece's layers together.
  double positions() const { return static_cast<double>(layers_a_piece_ * cache_.capacity()); }
  /// Bytes of a piece.
  double bytes() const { return static_cast<double>(cache_.nbytes()) / static_cast<double>(n_pieces()); }
  /// Without the scales of int8 rows.
  double bytes_of_elements() const {
    return 2.0 * static_cast<double>(part_bytes_) * static_cast<double>(heads_.size()) / static_cast<double>(n_pieces());
  }

  /// Calls `f(view)` for each layer of a piece; counts pieces round and round.
  template <class F>
  void for_each_layer(Index piece, F f) const {
    const Index first = piece % n_pieces() * layers_a_piece_;
    for (Index layer = first; layer < first + layers_a_piece_; ++layer) f(view(layer));
  }

  /// Reads every element of a piece once, each thread its share: what memory can give.
  void read(Index piece, tinyllm::ThreadPool& pool, Reading way) const {
    const Index n_heads = static_cast<Index>(heads_.size()) / n_pieces();
    const Index threads = pool.concurrency();
    pool.run(threads, [&](Index thread) {
      const Index first = part_bytes_ * thread / threads / line * line;
      const Index end = part_bytes_ * (thread + 1) / threads / line * line;
      std::uint64_t sum = 0;
      for (Index i = 0; i < n_heads; ++i) {
        const Head& head = heads_[static_cast<std::size_t>(piece % n_pieces() * n_heads + i)];
        const Index step = way == Reading::in_turn ? 4096 : end - first;
        for (Index at = first; at < end; at += step) {
          const Index n = std::min(step, end - at);
          sum ^= way == Reading::ahead ? read_bytes<true>(head.keys + at, n) : read_bytes<false>(head.keys + at, n);
          sum ^= way == Reading::ahead ? read_bytes<true>(head.values + at, n) : read_bytes<false>(head.values + at, n);
        }
      }
      sink_.store(sum, std::memory_order_relaxed);
    });
  }

 private:
  struct Head {
    const char* keys;
    const char* values;
  };
  Index layers_a_piece_;
  tinyllm::KVCache<Dtype> cache_;
  std::vector<Head> heads_;  // layer after layer
  Index part_bytes_ = 0;     // of a head's keys
  mutable std::atomic<std::uint64_t> sink_{0};
};

/// As many pieces as fill the working set. The last one of each type is kept: benchmarks of one cache follow each other.
template <class Dtype>
const FilledCache<Dtype>& filled_cache(const Shape& shape, Index s) {
  static std::unique_ptr<FilledCache<Dtype>> kept;
  static std::string kept_name;
  const std::string name = std::string(shape.name) + " " + std::to_string(s);
  if (name != kept_name) {
    kept.reset();  // gives the old memory back first
    const Index layer = 2 * shape.n_kv_heads * s * shape.d_head * Index{sizeof(Dtype)};
    const Index together = std::max<Index>(piece_bytes / layer, 1);
    const Index n_pieces = std::max<Index>(working_set / (together * layer), 1);
    kept = std::make_unique<FilledCache<Dtype>>(shape, s, n_pieces * together, together);
    kept_name = name;
  }
  return *kept;
}

}  // namespace bench
