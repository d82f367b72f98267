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

/// Far more than any cache of a processor holds.
inline constexpr Index working_set = Index{256} << 20;
/// Measured at a time: a millisecond is seldom interrupted, while the whole nearly always is where others work as well.
inline constexpr Index piece_bytes = Index{8} << 20;

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
        parts_.push_back(segment.keys);
        parts_.push_back(segment.values);
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
    return static_cast<double>(part_bytes_) * static_cast<double>(parts_.size()) / static_cast<double>(n_pieces());
  }

  /// Calls `f(view)` for each layer of a piece; counts pieces round and round.
  template <class F>
  void for_each_layer(Index piece, F f) const {
    const Index first = piece % n_pieces() * layers_a_piece_;
    for (Index layer = first; layer < first + layers_a_piece_; ++layer) f(view(layer));
  }

  /// Reads every element of a piece once, in order, each thread its share: what memory can give. Some processors are faster
  /// if they are asked ahead of time.
  void read(Index piece, tinyllm::ThreadPool& pool, bool fetching_ahead) const {
    const Index n_parts = static_cast<Index>(parts_.size()) / n_pieces();
    const Index first = piece % n_pieces() * n_parts;
    const Index threads = pool.concurrency();
    pool.run(threads, [&](Index thread) {
      for (Index i = n_parts * thread / threads; i < n_parts * (thread + 1) / threads; ++i) {
        const void* part = parts_[static_cast<std::size_t>(first + i)];
        fetching_ahead ? read_part<true>(part) : read_part<false>(part);
      }
    });
  }

 private:
  template <bool fetching_ahead>
  void read_part(const void* part) const {
    using Vector = std::uint64_t __attribute__((vector_size(16)));
    const auto* p = static_cast<const Vector*>(part);
    Vector sum[4] = {};
    for (Index i = 0; i + 4 <= part_bytes_ / 16; i += 4) {
      if constexpr (fetching_ahead) __builtin_prefetch(p + i + 128);
      for (Index j = 0; j < 4; ++j) sum[j] ^= p[i + j];
    }
    sum[0] ^= sum[1] ^ sum[2] ^ sum[3];
    sink_.store(sum[0][0] ^ sum[0][1], std::memory_order_relaxed);
  }

  Index layers_a_piece_;
  tinyllm::KVCache<Dtype> cache_;
  std::vector<const void*> parts_;  // keys and values of each head, layer after layer
  Index part_bytes_ = 0;
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
