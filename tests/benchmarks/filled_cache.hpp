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

template <class Dtype>
class FilledCache {
 public:
  FilledCache(const Shape& shape, Index s, Index n_layers)
      : cache_({.n_layers = n_layers, .n_kv_heads = shape.n_kv_heads, .d_head = shape.d_head, .max_len = s}) {
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

  Index n_layers() const { return cache_.dims().n_layers; }
  tinyllm::KVView<Dtype> view(Index layer) const { return cache_.view(layer); }
  double bytes() const { return static_cast<double>(cache_.nbytes()); }
  /// Without the scales of int8 rows.
  double bytes_of_elements() const { return static_cast<double>(part_bytes_) * static_cast<double>(parts_.size()); }

  /// Reads every element once, in order, each thread its share: what memory can give. Some processors are faster if they
  /// are asked ahead of time.
  void read(tinyllm::ThreadPool& pool, bool fetching_ahead) const {
    const auto threads = static_cast<std::size_t>(pool.concurrency());
    pool.run(pool.concurrency(), [&](Index thread) {
      const std::size_t first = parts_.size() * static_cast<std::size_t>(thread) / threads;
      const std::size_t end = parts_.size() * static_cast<std::size_t>(thread + 1) / threads;
      for (std::size_t i = first; i < end; ++i) fetching_ahead ? read_part<true>(parts_[i]) : read_part<false>(parts_[i]);
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

  tinyllm::KVCache<Dtype> cache_;
  std::vector<const void*> parts_;  // keys and values of each head, layer after layer
  Index part_bytes_ = 0;
  mutable std::atomic<std::uint64_t> sink_{0};
};

/// As many layers as fill the working set. The last one of each type is kept: benchmarks of one cache follow each other.
template <class Dtype>
const FilledCache<Dtype>& filled_cache(const Shape& shape, Index s) {
  static std::unique_ptr<FilledCache<Dtype>> kept;
  static std::string kept_name;
  const std::string name = std::string(shape.name) + " " + std::to_string(s);
  if (name != kept_name) {
    kept.reset();  // gives the old memory back first
    const Index layer = 2 * shape.n_kv_heads * s * shape.d_head * Index{sizeof(Dtype)};
    kept = std::make_unique<FilledCache<Dtype>>(shape, s, std::max<Index>(working_set / layer, 1));
    kept_name = name;
  }
  return *kept;
}

}  // namespace bench
