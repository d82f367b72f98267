// SPDX-License-Identifier: Apache-2.0
// Attention over a cache's view, read in the type that the cache stores: decode steps and chunks, grouped-query, causal.
//
//     tinyllm::AttendWorkspace workspace;                              // kept from call to call
//     auto view = cache.update(layer, k, v);
//     tinyllm::attend(view, q, out, workspace);                        // q, out: [T, H_q·d]
//     tinyllm::attend(view, q, out, workspace, {.window = 4096}, pool);
//
// Query heads h·H_q/H_kv .. share kv head h. Softmax and sums are float; masked keys are not read into any sum; a query that
// sees no key gives zeros. The past is never converted or copied as a whole.
//
// Over int8 rows few queries at a time are multiplied in integers of 15 bits, as weights are, and at the level avx512_vnni any
// number of them in integers of 8: a query's elements are rounded to 1/127 of the largest among 16 of every 64 columns, weights
// to 1/255 of eight times their mean over a tile at most. Over bfloat16 rows, where four query heads or more share a kv head,
// the level avx512_bf16 rounds queries and weights to bfloat16; q · k must then be finite before it is scaled. Either costs
// about as much as storing the rows has: ask for the level avx512 to have 15 bits, or float, at three to four fifths of the
// speed.
//
// Errors: std::invalid_argument if shapes do not fit; out is then untouched.
// Each file that calls this compiles the kernels, unless it links tinyllm::compiled (CMake), which defines TINYLLM_COMPILED
// and has them once. Files compiled for other instruction sets than that library do not link with it.
#pragma once

#include <tinyllm/attention/attendable.hpp>
#include <tinyllm/attention/job.hpp>
#include <tinyllm/attention/plan.hpp>
#include <tinyllm/core/cpu_level.hpp>
#include <tinyllm/core/executor.hpp>
#include <tinyllm/core/types.hpp>

#include <atomic>
#include <cmath>

#ifndef TINYLLM_COMPILED
#include <tinyllm/attention/kernels.hpp>
#endif

namespace tinyllm {
inline namespace TINYLLM_BUILD {

namespace attention_detail {

// g++ 12 takes the value of an absent std::optional for one that is read (GCC bug 80635).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

/// One call of attend: what its tasks share.
class AttendCall {
 public:
  AttendCall(const AttendShape& shape, const ConstRows& q, const Rows& out, const AttendOptions& options,
             const AttentionKernels& kernels, const AttendPlan& plan, AttendWorkspace& workspace)
      : shape_(shape),
        q_(q),
        out_(out),
        log_sum_exp_(options.log_sum_exp),
        scale_(options.scale ? *options.scale : 1.0F / std::sqrt(static_cast<float>(shape.d))),
        fetching_(fetches_ahead()                        ? Fetching::ahead
                  : shape.d >= fetch_from(shape.element) ? Fetching::other
                                                         : Fetching::none),
        kernels_(kernels),
        plan_(plan),
        workspace_(workspace) {}

  template <class E>
  void run(E& executor) {
    if (!plan_.spread) {
      share(executor, plan_.n_blocks, [&](Index block, float* memory) { whole_block(block, memory); });
      return;
    }
    share(executor, plan_.n_blocks * plan_.n_spans,
          [&](Index item, float* memory) { run_span(item / plan_.n_spans, item % plan_.n_spans, part(item), memory, false); });
    share(executor, plan_.n_blocks, [&](Index block, float* memory) { merge_block(block, memory); });
  }

 private:
  /// Runs `f(item, memory)` for each item, on as many threads as there are; each has its own memory.
  template <class E, class F>
  void share(E& executor, Index n_items, F f) {
    const Index n_workers = std::min(plan_.n_workers, n_items);
    std::atomic<Index> next{0};
    executor.run(n_workers, [&](Index worker) {
      float* memory = workspace_.worker_memory(plan_, worker);
      // The last blocks see the most keys, so they go first.
      for (Index taken = next.fetch_add(1, std::memory_order_relaxed); taken < n_items;
           taken = next.fetch_add(1, std::memory_order_relaxed)) {
        f(n_items - 1 - taken, memory);
      }
    });
  }

  Partial part(Index item) const { return partial_at(workspace_.part_memory(plan_, item)); }

  Index first_pair(Index block) const { return block % plan_.blocks_a_head * pair_block; }
  Index n_pairs(Index block) const { return std::min(pair_block, shape_.tokens * shape_.group - first_pair(block)); }

  AttentionJob job_of(Index block, const Partial& part, float* scratch) const {
    const Index head = block / plan_.blocks_a_head;  // counts sequences too
    const Index b = head / shape_.n_kv_heads;
    const Index h = head % shape_.n_kv_heads;
    const RunList runs = workspace_.runs_of(head);
    constexpr float log2_e = 1.44269504088896341F;
    return {.runs = runs.first,
            .n_runs = runs.count,
            .d = shape_.d,
            .d_value = shape_.d_value,
            .row = shape_.row,
            .q = q_.data + b * shape_.tokens * q_.stride + h * shape_.group * shape_.d,
            .q_stride = q_.stride,
            .scale = scale_ * log2_e,
            .group = shape_.group,
            .first_pair = first_pair(block),
            .n_pairs = n_pairs(block),
            .query_offset = shape_.query_offset,
            .window = shape_.window,
            .rows = shape_.rows,
            .first_key = 0,
            .end_key = 0,
            .fetching = fetching_,
            .packed = false,
            .tile = 0,
            .part = part,
            .scratch = scratch};
  }

  /// The softmax of a block over the keys of one span, which may be none.
  void run_span(Index block, Index span, const Partial& part, float* scratch, bool packed) const {
    AttentionJob job = job_of(block, part, scratch);
    job.packed = packed;
    const Index first = job.first_seen(0) / key_span * key_span;
    job.first_key = std::max(span * plan_.span_keys, first);
    job.end_key = std::min((span + 1) * plan_.span_keys, job.end_seen(job.n_pairs - 1));
    if (job.first_key > job.end_key) job.first_key = job.end_key = 0;
    (plan_.kind == AttendPlan::Kind::stream ? kernels_.stream : kernels_.block)(job);
  }

  void whole_block(Index block, float* memory) const {
    const Index size = partial_size(pair_block, shape_.d_value);
    const Partial total = partial_at(memory);
    float* scratch = memory + 2 * size;
    if (plan_.n_spans == 1) {
      run_span(block, 0, total, scratch, false);
    } else {
      const AttentionJob job = job_of(block, total, scratch);
      const Index first = job.first_seen(0) / plan_.span_keys;
      const Index last = (job.end_seen(job.n_pairs - 1) + plan_.span_keys - 1) / plan_.span_keys;
      run_span(block, first, total, scratch, false);
      for (Index span = first + 1; span < last; ++span) {
        const Partial more = partial_at(memory + size);
        run_span(block, span, more, scratch, true);
        kernels_.fold(total, more, n_pairs(block), shape_.d_value);
      }
    }
    finish(block, total);
  }

  void merge_block(Index block, float*) const {
    const Partial total = part(block * plan_.n_spans);
    for (Index span = 1; span < plan_.n_spans; ++span) {
      kernels_.fold(total, part(block * plan_.n_spans + span), n_pairs(block), shape_.d_value);
    }
    finish(block, total);
  }

  /// Divides by the sums and writes the results.
  void finish(Index block, const Partial& total) const {
    const Index head = block / plan_.blocks_a_head;
    const Index b = head / shape_.n_kv_heads;
    const Index h = head % shape_.n_kv_heads;
    const Index width = plan_.kind == AttendPlan::Kind::stream ? kernels_.split_width : 0;
    for (Index i = 0; i < n_pairs(block); ++i) {
      const Index pair = first_pair(block) + i;
      const Index row = b * shape_.tokens + pair / shape_.group;
      const Index query_head = h * shape_.group + pair % shape_.group;
      float* out = out_.data + row * out_.stride + query_head * shape_.d_value;
      const float* weighted = total.weighted + i * padded(shape_.d_value);
      const float sum = total.sum[i];
      const float factor = sum == 0.0F ? 0.0F : 1.0F / sum;
      for (Index c = 0; c < shape_.d_value; ++c) {
        const Index at = width == 0 ? c : c / (2 * width) * 2 * width + c % 2 * width + c % (2 * width) / 2;
        out[c] = weighted[at] * factor;
      }
      if (log_sum_exp_ != nullptr) {
        constexpr float ln_2 = 0.693147180559945309F;
        log_sum_exp_[row * shape_.n_heads() + query_head] = sum == 0.0F ? nothing : total.maximum[i] * ln_2 + std::log(sum);
      }
    }
  }

  const AttendShape& shape_;
  const ConstRows& q_;
  const Rows& out_;
  float* log_sum_exp_;
  float scale_;
  Fetching fetching_;
  const AttentionKernels& kernels_;
  const AttendPlan& plan_;
  AttendWorkspace& workspace_;
};

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

}  // namespace attention_detail

/// out = softmax(scale · q · Kᵀ) · V over the keys that each query sees; zeros where there is none.
/// Shape: q and out are [B·T, H_q·d]; H_q is a multiple of the view's kv heads
/// Throws: std::invalid_argument if the shapes do not fit or this machine does not run the level asked for; whatever the
///   executor throws.
/// Cost: O(B·T·H_q·s·d) and one read of the keys and values for every 64 pairs of query and head; allocates only while the
///   workspace grows
/// Threads: one call at a time for each workspace
template <Attendable View, Executor E>
void attend(const View& view, const ConstRows& q, const Rows& out, AttendWorkspace& workspace, const AttendOptions& options,
            E& executor) {
  const attention_detail::AttendShape shape = attention_detail::attend_shape(view, q, out, options);
  const attention_detail::AttentionKernels& kernels =
      attention_detail::attention_kernels<StoredType<View>>(attention_detail::level_for<StoredType<View>>(options, shape));
  const Exactness exactness = kernels.block == nullptr ? Exactness::reproducible : options.exactness;
  const attention_detail::AttendPlan plan(shape, exactness, static_cast<Index>(executor.concurrency()));
  if (plan.n_blocks == 0) return;
  workspace.prepare(view, plan, shape);
  attention_detail::AttendCall(shape, q, out, options, kernels, plan, workspace).run(executor);
}

/// The same on the calling thread.
template <Attendable View>
void attend(const View& view, const ConstRows& q, const Rows& out, AttendWorkspace& workspace,
            const AttendOptions& options = {}) {
  SerialExecutor serial;
  attend(view, q, out, workspace, options, serial);
}

}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
