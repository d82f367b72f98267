// SPDX-License-Identifier: Apache-2.0
// LatentView: what a LatentCache hands a layer: the latent and the shared rotary key of every position, as stored.
//
//     LatentView<float> view = cache.update(layer, c, k_rope);
//     view.latents(b);      // [rows, d_latent]
//     view.rope_keys(b);    // [rows, d_rope]
//
// Shows `rows()` positions even after later appends, and stays valid until the cache's next truncate, move or end.
#pragma once

#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

namespace tinyllm {

/// A position's latent and rotary key lie side by side, so that attention reads one row for both: [c | k_rope].
/// Threads: reading is safe from any number of threads
template <class Dtype>
class LatentView {
 public:
  /// Read-only matrix over a part of each stored row.
  using Rows = Eigen::Map<const Eigen::Matrix<Dtype, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, Eigen::Unaligned,
                          Eigen::OuterStride<>>;

  LatentView(const Dtype* data, Index rows, Index batch, Index batch_stride, Index d_latent, Index d_rope)
      : data_(data), rows_(rows), batch_(batch), batch_stride_(batch_stride), d_latent_(d_latent), d_rope_(d_rope) {}

  /// Positions shown, the new chunk included.
  Index rows() const { return rows_; }
  Index batch() const { return batch_; }
  Index d_latent() const { return d_latent_; }
  Index d_rope() const { return d_rope_; }

  /// Both parts side by side.
  /// Shape: [rows, d_latent + d_rope]
  /// Pre: 0 <= b < batch()
  Rows both(Index b) const { return part(b, 0, d_latent_ + d_rope_); }
  /// Shape: [rows, d_latent]
  Rows latents(Index b) const { return part(b, 0, d_latent_); }
  /// Shape: [rows, d_rope]
  Rows rope_keys(Index b) const { return part(b, d_latent_, d_rope_); }

 private:
  Rows part(Index b, Index first, Index width) const {
    TINYLLM_ASSERT(b >= 0 && b < batch_);
    return Rows(data_ + b * batch_stride_ + first, rows_, width, Eigen::OuterStride<>(d_latent_ + d_rope_));
  }

  const Dtype* data_;
  Index rows_;
  Index batch_;
  Index batch_stride_;
  Index d_latent_;
  Index d_rope_;
};

}  // namespace tinyllm
