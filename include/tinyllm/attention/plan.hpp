// SPDX-License-Identifier: Apache-2.0
// How a call of attend is cut into tasks, and the memory that they work in.
//
//     tinyllm::AttendWorkspace workspace;         // one for each thread that calls attend; grows to what calls need
//
// Work is cut into blocks of pairs (query, head) of one kv head, and, where that is too little for all threads, into spans of
// keys as well. Units: floats for memory, positions for spans.
#pragma once

#include <tinyllm/attention/attendable.hpp>
#include <tinyllm/attention/job.hpp>
#include <tinyllm/core/aligned_buffer.hpp>
#include <tinyllm/core/cpu_level.hpp>
#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/simd_region.hpp>
#include <tinyllm/core/types.hpp>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace tinyllm {
inline namespace TINYLLM_BUILD {

namespace attention_detail {

/// More pairs than this are worth a converted copy of each tile.
inline constexpr Index most_streamed_pairs = 8;

/// Fewer query heads than this to a kv head leave memory the bound over bfloat16 rows, and traffic is smoother where each row
/// keeps the processor busy for longer: products of pairs would only cost accuracy.
inline constexpr Index least_group_for_pairs = 4;

/// The level whose kernels suit a call best, at most the one that is asked for.
template <StorageType Dtype>
CpuLevel level_for(const AttendOptions& options, const AttendShape& shape) {
  const CpuLevel level = options.level ? *options.level : best_level();
  const bool pairs = !std::same_as<Dtype, Eigen::bfloat16> || shape.group >= least_group_for_pairs;
  return pairs ? level : std::min(level, CpuLevel::avx512);
}

struct AttendPlan {
  enum class Kind { stream, block };

  Kind kind;
  Index d;
  Index d_value;
  Index blocks_a_head;  // blocks of pairs for one sequence and kv head
  Index n_blocks;       // blocks in all
  Index span_keys;      // keys of a span
  Index n_spans;        // spans of a block
  bool spread;          // whether a block's spans are tasks of their own
  Index n_workers;      // tasks that may run at the same time

  AttendPlan(const AttendShape& shape, Exactness exactness, Index concurrency) : d(shape.d), d_value(shape.d_value) {
    const Index pairs = shape.tokens * shape.group;
    kind = exactness == Exactness::reproducible || pairs <= most_streamed_pairs ? Kind::stream : Kind::block;
    blocks_a_head = (pairs + pair_block - 1) / pair_block;
    n_blocks = shape.batch * shape.n_kv_heads * blocks_a_head;
    n_workers = std::max<Index>(concurrency, 1);
    const Index shortest_spans = std::max<Index>((shape.rows + key_span - 1) / key_span, 1);
    const Index wanted = 4 * n_workers;  // tasks enough for threads that come and go
    spread = n_workers > 1 && n_blocks > 0 && n_blocks < wanted && shortest_spans > 1;
    // Streamed spans are always the same, so that results do not depend on who takes which.
    Index spans_together = 1;
    if (kind == Kind::block) {
      const Index spans = spread ? (wanted + n_blocks - 1) / n_blocks : 1;
      spans_together = (shortest_spans + spans - 1) / spans;
    }
    span_keys = spans_together * key_span;
    n_spans = (shortest_spans + spans_together - 1) / spans_together;
    spread = spread && n_spans > 1;
  }
};

/// The stored runs of one head.
struct RunList {
  const StoredRun* first;
  Index count;
};

}  // namespace attention_detail

/// The memory that attend works in: keep one and nothing is allocated once it has grown.
/// Threads: one call at a time
class AttendWorkspace {
 public:
  /// Bytes held just now.
  std::size_t nbytes() const {
    return static_cast<std::size_t>(size_) * sizeof(float) + runs_.capacity() * sizeof(attention_detail::StoredRun);
  }

  /// Internal: notes where a view's rows lie and makes room for a call.
  template <Attendable View>
  void prepare(const View& view, const attention_detail::AttendPlan& plan, const attention_detail::AttendShape& shape) {
    runs_.clear();
    starts_.clear();
    for (Index b = 0; b < shape.batch; ++b) {
      for (Index h = 0; h < shape.n_kv_heads; ++h) {
        starts_.push_back(static_cast<Index>(runs_.size()));
        Index first = 0;
        const Index segments = view.n_segments();
        for (Index i = 0; i < segments; ++i) {
          const auto segment = view.segment(b, h, i);
          if (follows(segment, first, shape.row, starts_.back())) {
            runs_.back().rows += segment.rows;
          } else if (segment.rows > 0) {
            runs_.push_back(run_of(segment, first));
          }
          first += segment.rows;
        }
        TINYLLM_ASSERT(first == shape.rows);
      }
    }
    starts_.push_back(static_cast<Index>(runs_.size()));
    const Index parts = plan.spread ? plan.n_blocks * plan.n_spans : 0;
    part_size_ =
        attention_detail::partial_size(std::min(attention_detail::pair_block, shape.tokens * shape.group), plan.d_value);
    const Index size = plan.n_workers * worker_size(plan) + parts * part_size_;
    if (size > size_) {
      // By half as much again, as a sequence that grows needs more again and again.
      const Index grown = std::max(size, size_ + size_ / 2);
      size_ = 0;
      memory_ = AlignedBuffer<float>(1);  // gives the old memory back first
      memory_ = AlignedBuffer<float>(grown);
      size_ = grown;
    }
  }

  /// Internal: two Partials and a kernel's scratch.
  float* worker_memory(const attention_detail::AttendPlan& plan, Index worker) {
    return memory_.data() + worker * worker_size(plan);
  }
  /// Internal: where the Partial of an item of a spread plan lies.
  float* part_memory(const attention_detail::AttendPlan& plan, Index item) {
    return memory_.data() + plan.n_workers * worker_size(plan) + item * part_size_;
  }
  /// Internal: the runs of one sequence's kv head.
  attention_detail::RunList runs_of(Index head) const {
    const auto at = static_cast<std::size_t>(head);
    return {runs_.data() + starts_[at], starts_[at + 1] - starts_[at]};
  }

 private:
  template <class Segment>
  static attention_detail::StoredRun run_of(const Segment& segment, Index first) {
    attention_detail::StoredRun run{segment.keys, segment.values, first, segment.rows, nullptr, nullptr};
    if constexpr (requires { segment.key_scales; }) {
      run.key_scales = segment.key_scales;
      run.value_scales = segment.value_scales;
    }
    return run;
  }

  // Whether a segment lies right behind the last run in memory, its scales too: neighbouring blocks of a pool are read as one.
  template <class Segment>
  bool follows(const Segment& segment, Index first, Index row, Index start) const {
    if (static_cast<Index>(runs_.size()) == start) return false;
    const attention_detail::StoredRun& run = runs_.back();
    const Index rows = first - run.first;
    if constexpr (std::same_as<std::remove_cvref_t<decltype(*segment.keys)>, std::int8_t>) {
      if (segment.key_scales != run.key_scales + rows || segment.value_scales != run.value_scales + rows) return false;
    }
    return segment.keys == static_cast<decltype(segment.keys)>(run.keys) + rows * row &&
           segment.values == static_cast<decltype(segment.values)>(run.values) + rows * row;
  }

  static Index worker_size(const attention_detail::AttendPlan& plan) {
    return 2 * attention_detail::partial_size(attention_detail::pair_block, plan.d_value) +
           attention_detail::scratch_size(plan.d);
  }

  std::vector<attention_detail::StoredRun> runs_;
  std::vector<Index> starts_;  // of each head's runs
  AlignedBuffer<float> memory_{1};
  Index size_ = 0;
  Index part_size_ = 0;
};

}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
