// SPDX-License-Identifier: Apache-2.0
// Attention over a latent cache with absorbed projections (MLA): every head reads the same row, [c | k_rope] as its key and c
// as its value.
//
//     tinyllm::LatentView<float> view = cache.update(layer, c, k_rope);
//     tinyllm::attend(view, q, out, workspace, {.scale = 1 / std::sqrt(d_nope + d_rope)});
//         // q: [B·T, H·(r + d_R)], of each head [q_nope · W_UK | q_rope];  out: [B·T, H·r], to be multiplied by W_UV
//
// A tile of rows is read once, for scores and results of 64 pairs of query and head.
// Source: DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model", 2024, section 2.1.
#pragma once

#include <tinyllm/attention/attend.hpp>
#include <tinyllm/attention/attendable.hpp>
#include <tinyllm/attention/plan.hpp>
#include <tinyllm/attention/reference.hpp>
#include <tinyllm/cache/kv_view.hpp>
#include <tinyllm/cache/latent_view.hpp>
#include <tinyllm/core/executor.hpp>
#include <tinyllm/core/types.hpp>

#include <stdexcept>

namespace tinyllm {

/// A LatentView as attention sees it: one kv head whose values are the beginnings of its keys.
template <class Dtype>
class LatentHeads {
 public:
  explicit LatentHeads(const LatentView<Dtype>& view) : view_(view) {}

  Index rows() const { return view_.rows(); }
  Index batch() const { return view_.batch(); }
  Index n_heads() const { return 1; }
  Index d_head() const { return view_.d_latent() + view_.d_rope(); }
  /// Columns of a value.
  Index d_value() const { return view_.d_latent(); }
  /// Elements from one row to the next.
  Index row_stride() const { return d_head(); }
  Index n_segments() const { return 1; }
  KVSegment<Dtype> segment(Index b, Index, Index) const {
    const Dtype* rows = view_.both(b).data();
    return {rows, rows, view_.rows()};
  }

 private:
  LatentView<Dtype> view_;
};

namespace detail {

/// What a score is multiplied by depends on the width that a head had before absorption, which a latent does not tell.
inline void check_latent_scale(const AttendOptions& options) {
  if (!options.scale) throw std::invalid_argument("attend: latent attention needs a scale, as 1 / sqrt(d_nope + d_rope)");
}

}  // namespace detail

/// out = softmax(scale · q · [c | k_rope]ᵀ) · c over the positions that each query sees; zeros where there is none.
/// Shape: q is [B·T, H·(r + d_R)], out is [B·T, H·r]
/// Throws: std::invalid_argument if the shapes do not fit or there is no scale; as `attend` otherwise.
/// Cost, Threads: as `attend`
template <class Dtype, Executor E>
void attend(const LatentView<Dtype>& view, const ConstRows& q, const Rows& out, AttendWorkspace& workspace,
            const AttendOptions& options, E& executor) {
  detail::check_latent_scale(options);
  attend(LatentHeads<Dtype>(view), q, out, workspace, options, executor);
}

/// The same on the calling thread.
template <class Dtype>
void attend(const LatentView<Dtype>& view, const ConstRows& q, const Rows& out, AttendWorkspace& workspace,
            const AttendOptions& options) {
  SerialExecutor serial;
  attend(view, q, out, workspace, options, serial);
}

/// The same in plain loops.
template <class Dtype>
void reference_attention(const LatentView<Dtype>& view, const ConstRows& q, const Rows& out, const AttendOptions& options) {
  detail::check_latent_scale(options);
  reference_attention(LatentHeads<Dtype>(view), q, out, options);
}

}  // namespace tinyllm
