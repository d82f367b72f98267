// SPDX-License-Identifier: Apache-2.0
// CausalMask: which keys each query of a chunk may see, the causal mask aligned to the bottom right.
//
//     CausalMask mask = cache.mask(T);       // [T, s + T]
//     if (mask(i, j)) ...                    // query i (position s + i) sees key j
//
// A value of two numbers: asking it costs nothing, `matrix()` writes it out.
#pragma once

#include <tinyllm/core/types.hpp>

namespace tinyllm {

/// Shape: [T, s + T]
class CausalMask {
 public:
  using Matrix = Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

  /// `queries` new positions behind `past` committed ones.
  CausalMask(Index queries, Index past) : queries_(queries), past_(past) {}

  Index rows() const { return queries_; }
  Index cols() const { return past_ + queries_; }

  /// True where query `i` sees key `j`.
  bool operator()(Index i, Index j) const { return j <= past_ + i; }

  /// Keys that query `i` sees: the first `visible(i)` of them.
  Index visible(Index i) const { return past_ + i + 1; }

  /// The mask written out.
  /// Cost: allocates T·(s + T) booleans
  Matrix matrix() const {
    return Matrix::NullaryExpr(rows(), cols(), [this](Index i, Index j) { return (*this)(i, j); });
  }

 private:
  Index queries_;
  Index past_;
};

}  // namespace tinyllm
