// SPDX-License-Identifier: Apache-2.0
// Attention: causal grouped-query attention over a cache's view, read in the type that the cache stores.
//
//     engine::Attention attention(pool, {.n_heads = 9, .n_kv_heads = 3, .head_dim = 64});
//     attention.attend(cache.update(layer, k, v), q, out);       // q, out: [T, n_heads · head_dim]
//
// The queries are the last T positions of the view: query i sees keys 0 .. rows − T + i. Softmax is online, in float; the
// past is converted a tile at a time at most; scores exist for one tile of keys and queries.
// Errors: std::invalid_argument if shapes do not fit. Lifetime: must not outlive its pool. Threads: one call at a time.
#pragma once

#include "kernels.hpp"

#include <tinyllm/cache/kv_view.hpp>
#include <tinyllm/core/executor.hpp>
#include <tinyllm/core/types.hpp>

#include <type_traits>
#include <vector>

namespace engine {

using tinyllm::RowMatrix;

/// The file format's name of a cache's storage type.
template <class Dtype>
consteval TensorType stored_type() {
  if constexpr (std::is_same_v<Dtype, float>) {
    return TensorType::F32;
  } else if constexpr (std::is_same_v<Dtype, Eigen::half>) {
    return TensorType::F16;
  } else {
    static_assert(std::is_same_v<Dtype, Eigen::bfloat16>, "attention reads float, Eigen::half and Eigen::bfloat16");
    return TensorType::BF16;
  }
}

/// Query heads h · n_heads / n_kv_heads .. share kv head h.
struct AttentionShape {
  Index n_heads;
  Index n_kv_heads;
  Index head_dim;
};

class Attention {
 public:
  Attention(tinyllm::ThreadPool& pool, const AttentionShape& shape, const Kernels& kernels = best_kernels());

  /// out = softmax(q · Kᵀ / √head_dim) · V, head by head. `out` is resized.
  /// `View` is a tinyllm::KVView, or has the same members.
  /// Shape: q is [T, n_heads · head_dim], the view holds at least T rows of one sequence
  /// Cost: allocates only while scratch grows
  template <class View>
  void attend(const View& view, const RowMatrix& q, RowMatrix& out) {
    using Dtype = std::remove_cvref_t<decltype(*view.segment(0, 0, 0).keys)>;
    begin(stored_type<Dtype>(), {view.batch(), view.n_heads(), view.d_head()}, view.rows(), q.rows());
    for (Index h = 0; h < view.n_heads(); ++h) {
      for (Index i = 0; i < view.n_segments(); ++i) {
        const auto segment = view.segment(0, h, i);
        add_segment(h, reinterpret_cast<const std::byte*>(segment.keys), reinterpret_cast<const std::byte*>(segment.values),
                    segment.rows);
      }
    }
    run(q, out);
  }

 private:
  struct ViewShape {
    Index batch;
    Index n_heads;
    Index d_head;
  };
  struct Segment {
    const std::byte* keys;
    const std::byte* values;
    Index first;  // position in the view of its first row
    Index rows;
  };
  struct Part;   // what one decode task has found
  struct Block;  // the scratch of one prefill task

  void begin(TensorType type, const ViewShape& view, Index rows, Index tokens);
  void add_segment(Index kv_head, const std::byte* keys, const std::byte* values, Index rows);
  void run(const RowMatrix& q, RowMatrix& out);

  void decode(const RowMatrix& q, RowMatrix& out);
  void decode_part(const float* q, Index kv_head, Index first, Index end, float* part) const;
  void merge_parts(Index n_parts, RowMatrix& out) const;

  void prefill(const RowMatrix& q, RowMatrix& out);
  void prefill_block(const RowMatrix& q, RowMatrix& out, Index kv_head, Index first_pair, float* scratch) const;
  void prefill_tile(const StridedFloats& keys, const StridedFloats& values, Index first_key, Index first_pair, Index n_pairs,
                    float* block, float* scores) const;

  /// Calls f(segment, first, n) for runs of at most `step` rows, none across two segments, of positions [first, end).
  template <class F>
  void for_each_run(Index kv_head, Index first, Index end, Index step, F f) const;
  StoredMatrix rows_of(const std::byte* data, Index first, Index n) const;
  /// Keys that query `i` of this pass sees.
  Index visible(Index i) const { return rows_ - tokens_ + i + 1; }
  Index group() const { return shape_.n_heads / shape_.n_kv_heads; }

  tinyllm::ThreadPool& pool_;
  AttentionShape shape_;
  const Kernels& kernels_;
  float scale_;

  TensorType type_ = TensorType::F32;
  Index rows_ = 0;
  Index tokens_ = 0;
  std::vector<std::vector<Segment>> segments_;  // [kv head]
  std::vector<float> scratch_;
};

}  // namespace engine
