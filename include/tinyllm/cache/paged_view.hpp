// SPDX-License-Identifier: Apache-2.0
// PagedKVView: what a PagedKVCache hands a layer: all keys and values of one sequence, a segment a block, as stored.
//
//     PagedKVView<Eigen::half> view = cache.update(layer, k, v);
//     attend(view, q, out, workspace);
//     for (Index i = 0; i < view.n_segments(); ++i) use(view.segment(0, h, i));
//
// Shows `rows()` positions even after later appends, and stays valid until the sequence's next truncate, move or end. A
// segment's pointers are good until the next append: writing behind a fork replaces the block that both were sharing.
#pragma once

#include <tinyllm/cache/block_ledger.hpp>
#include <tinyllm/cache/kv_view.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

#include <algorithm>

namespace tinyllm {

/// One layer of one sequence.
/// Threads: reading is safe from any number of threads
template <class Dtype>
class PagedKVView {
 public:
  /// Layout of one layer's storage: `[head][block][position][d]`.
  /// Units: head_rows in rows from head to head, block_size in positions
  struct Layout {
    Index n_heads;
    Index d_head;
    Index block_size;
    Index head_rows;
  };

  PagedKVView(const RowAddress<Dtype>& keys, const RowAddress<Dtype>& values, const BlockId* blocks, Index rows,
              const Layout& layout)
      : keys_(keys), values_(values), blocks_(blocks), rows_(rows), layout_(layout) {}

  /// Positions shown, the new chunk included.
  Index rows() const { return rows_; }
  Index batch() const { return 1; }
  Index n_heads() const { return layout_.n_heads; }
  Index d_head() const { return layout_.d_head; }
  Index block_size() const { return layout_.block_size; }

  /// Segments a head, one a block; positions run on from one to the next.
  Index n_segments() const { return (rows_ + layout_.block_size - 1) / layout_.block_size; }

  /// Pre: b == 0, 0 <= h < n_heads(), 0 <= i < n_segments()
  KVSegment<Dtype> segment([[maybe_unused]] Index b, Index h, Index i) const {
    TINYLLM_ASSERT(b == 0 && h >= 0 && h < n_heads() && i >= 0 && i < n_segments());
    const Index row = h * layout_.head_rows + blocks_[i] * layout_.block_size;
    const RowAddress<Dtype> k = keys_.at(row, layout_.d_head);
    const RowAddress<Dtype> v = values_.at(row, layout_.d_head);
    const Index n = std::min(layout_.block_size, rows_ - i * layout_.block_size);
    return {k.elements, v.elements, n, k.scales, v.scales};
  }

  /// Whether all blocks lie one behind the other, so that `keys` and `values` can show them as a whole.
  /// Cost: O(n_segments)
  bool contiguous() const {
    for (Index i = 1; i < n_segments(); ++i) {
      if (blocks_[i] != blocks_[i - 1] + 1) return false;
    }
    return true;
  }

  /// All keys of one head.
  /// Shape: [rows, d]
  /// Pre: contiguous()
  StoredRows<Dtype> keys(Index b, Index h) const { return {whole(b, h).keys, rows_, layout_.d_head}; }

  /// All values of one head.
  /// Shape: [rows, d]
  /// Pre: contiguous()
  StoredRows<Dtype> values(Index b, Index h) const { return {whole(b, h).values, rows_, layout_.d_head}; }

 private:
  KVSegment<Dtype> whole(Index b, Index h) const {
    TINYLLM_ASSERT(contiguous());
    return rows_ == 0 ? KVSegment<Dtype>{keys_.elements, values_.elements, 0} : segment(b, h, 0);
  }

  RowAddress<Dtype> keys_;
  RowAddress<Dtype> values_;
  const BlockId* blocks_;
  Index rows_;
  Layout layout_;
};

}  // namespace tinyllm
