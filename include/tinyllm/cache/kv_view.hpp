// SPDX-License-Identifier: Apache-2.0
// KVView: what a cache hands a layer: all keys and values it holds, as stored, for every sequence and kv head.
//
//     KVView<Eigen::half> view = cache.update(layer, k, v);
//     view.keys(b, h);                                              // [rows, d] Eigen::Map, if there is one segment
//     for (Index i = 0; i < view.n_segments(); ++i) use(view.segment(b, h, i));   // any cache
//
// Shows `rows()` positions even after later appends, and stays valid until the cache's next truncate, move or end.
#pragma once

#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

namespace tinyllm {

/// Read-only matrix over stored rows.
/// Shape: [rows, d]
template <class Dtype>
using StoredRows = Eigen::Map<const Eigen::Matrix<Dtype, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>;

/// Where stored rows begin. An int8 row stands for its scale times its integers; other types have no scales.
/// Shape: elements are [rows, d], row-major; scales are [rows], or null
template <class Dtype>
struct RowAddress {
  const Dtype* elements;
  const float* scales = nullptr;

  RowAddress(const Dtype* first, const float* first_scale = nullptr) : elements(first), scales(first_scale) {}
  /// The address of a later row of width d.
  RowAddress at(Index row, Index d) const { return {elements + row * d, scales == nullptr ? nullptr : scales + row}; }
};

/// Consecutive positions of one kv head whose keys lie one after the other, and whose values do.
/// Shape: keys and values are [rows, d], row-major; the scales of int8 rows are [rows], null for other types
template <class Dtype>
struct KVSegment {
  const Dtype* keys;
  const Dtype* values;
  Index rows;
  const float* key_scales = nullptr;
  const float* value_scales = nullptr;
};

/// All positions that one layer holds, as a list of segments a head.
/// Invalidates: see above
/// Threads: reading is safe from any number of threads
template <class Dtype>
class KVView {
 public:
  /// Layout of one layer's storage: `[batch][head][position][d]`.
  /// Units: strides in elements, whole rows
  struct Layout {
    Index batch;
    Index n_heads;
    Index d_head;
    Index batch_stride;
    Index head_stride;
  };

  KVView(const RowAddress<Dtype>& keys, const RowAddress<Dtype>& values, Index rows, const Layout& layout)
      : keys_(keys), values_(values), rows_(rows), layout_(layout) {}

  /// Positions shown, the new chunk included.
  Index rows() const { return rows_; }
  Index batch() const { return layout_.batch; }
  Index n_heads() const { return layout_.n_heads; }
  Index d_head() const { return layout_.d_head; }

  /// Segments a head; positions run on from one to the next.
  Index n_segments() const { return 1; }

  /// Pre: 0 <= b < batch(), 0 <= h < n_heads(), 0 <= i < n_segments()
  KVSegment<Dtype> segment(Index b, Index h, [[maybe_unused]] Index i) const {
    TINYLLM_ASSERT(b >= 0 && b < batch() && h >= 0 && h < n_heads() && i >= 0 && i < n_segments());
    const Index row = (b * layout_.batch_stride + h * layout_.head_stride) / layout_.d_head;
    const RowAddress<Dtype> k = keys_.at(row, layout_.d_head);
    const RowAddress<Dtype> v = values_.at(row, layout_.d_head);
    return {k.elements, v.elements, rows_, k.scales, v.scales};
  }

  /// All keys of one head.
  /// Shape: [rows, d]
  /// Pre: one segment
  StoredRows<Dtype> keys(Index b, Index h) const { return {segment(b, h, 0).keys, rows_, layout_.d_head}; }

  /// All values of one head.
  /// Shape: [rows, d]
  /// Pre: one segment
  StoredRows<Dtype> values(Index b, Index h) const { return {segment(b, h, 0).values, rows_, layout_.d_head}; }

 private:
  RowAddress<Dtype> keys_;
  RowAddress<Dtype> values_;
  Index rows_;
  Layout layout_;
};

}  // namespace tinyllm
