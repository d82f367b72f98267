// SPDX-License-Identifier: Apache-2.0
// Matmul: products of float activations with weight matrices, straight from the file's storage type, over all threads.
//
//     engine::WeightMatrix w(gguf.tensor("blk.0.attn_q.weight"));       // [rows, cols], nothing copied
//     engine::Matmul matmul(pool);
//     matmul.multiply(x, w, y);                                         // y[T, rows] = x[T, cols] · Wᵀ
//
// Exact up to float rounding: numbers are converted as the format defines them, sums run in float.
// Errors: std::invalid_argument if shapes do not fit. Lifetime: a WeightMatrix must not outlive its Gguf, nor a Matmul its
// pool. Threads: one product at a time for each Matmul.
#pragma once

#include "gguf.hpp"
#include "kernels.hpp"

#include <tinyllm/core/executor.hpp>
#include <tinyllm/core/types.hpp>

#include <span>
#include <vector>

namespace engine {

using tinyllm::RowMatrix;

/// A weight matrix in the layout that the kernels read; just now, the file's own.
/// Shape: [rows, cols]; it maps cols inputs to rows outputs.
class WeightMatrix {
 public:
  WeightMatrix() = default;

  /// Throws: `FileError` if this engine cannot read the tensor's type.
  explicit WeightMatrix(const Tensor& tensor);

  Index rows() const { return stored_.rows; }
  Index cols() const { return stored_.cols; }

  /// A run of rows, as the kernels take it. Pre: 0 <= first, first + n <= rows()
  StoredMatrix stored_rows(Index first, Index n) const;

  /// Writes one row as floats. Shape: out is [cols]
  void unpack_row(Index row, std::span<float> out) const;

 private:
  StoredMatrix stored_{TensorType::F32, nullptr, 0, 0, 0};
};

/// One output of a product: the same activations times these weights.
/// Shape: out is [T, weights->rows()]
struct Product {
  const WeightMatrix* weights;
  RowMatrix* out;
};

class Matmul {
 public:
  explicit Matmul(tinyllm::ThreadPool& pool, const Kernels& kernels = best_kernels());

  /// y = x · Wᵀ. `y` is resized.
  /// Shape: x is [T, cols], y becomes [T, rows]
  void multiply(const RowMatrix& x, const WeightMatrix& weights, RowMatrix& y) {
    const Product product{&weights, &y};
    multiply(x, {&product, 1});
  }

  /// Several products of the same activations as one parallel step.
  /// Cost: allocates only while scratch grows to the largest shape seen and where an output changes its size
  void multiply(const RowMatrix& x, std::span<const Product> products);

 private:
  void multiply_rows(const RowMatrix& x, std::span<const Product> products);
  void multiply_tiles(const RowMatrix& x, std::span<const Product> products);
  void pack(const RowMatrix& x);
  void multiply_panel(const WeightMatrix& weights, Index first, Index n, RowMatrix& y, float* scratch) const;

  tinyllm::ThreadPool& pool_;
  const Kernels& kernels_;
  std::vector<float> packed_;   // activations as tiles: [tiles, cols, tile_lanes]
  std::vector<float> scratch_;  // one unpacked panel and one tile of output a thread
};

}  // namespace engine
