// SPDX-License-Identifier: Apache-2.0
// Matmul: products of float activations with packed weight matrices, over all threads.
//
//     engine::WeightMatrix w(gguf.tensor("blk.0.attn_q.weight"));       // [rows, cols]
//     engine::Matmul matmul(pool, engine::Activations::q8);
//     matmul.multiply(x, w, y);                                         // y[T, rows] = x[T, cols] · Wᵀ
//
// With Activations::f32 products are exact up to float rounding. With q8, activations that meet quantised weights are rounded
// to 8 bits in blocks of 32: an error of about 5e-3 of a product's root mean square, for twice the speed and more.
// A token's results do not depend on the tokens beside it.
// Errors: std::invalid_argument if shapes do not fit. Lifetime: a Matmul must not outlive its pool.
// Threads: one product at a time for each Matmul.
#pragma once

#include "kernels.hpp"
#include "panels.hpp"

#include <tinyllm/core/executor.hpp>
#include <tinyllm/core/types.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace engine {

using tinyllm::RowMatrix;

/// How exactly activations enter products with quantised weights. What q8 costs: SmolLM2-135M in Q4_1 gives a text of 813
/// tokens 3.0773 nats a token, and 3.0769 with f32.
enum class Activations { f32, q8 };

/// One output of a product: the same activations times these weights.
/// Shape: out is [T, weights->rows()]
struct Product {
  const WeightMatrix* weights;
  RowMatrix* out;
};

class Matmul {
 public:
  explicit Matmul(tinyllm::ThreadPool& pool, Activations activations = Activations::f32,
                  const Kernels& kernels = best_kernels());

  /// y = x · Wᵀ. `y` is resized.
  /// Shape: x is [T, cols], y becomes [T, rows]
  void multiply(const RowMatrix& x, const WeightMatrix& weights, RowMatrix& y) {
    const Product product{&weights, &y};
    multiply(x, {&product, 1});
  }

  /// Several products of the same activations as one parallel step.
  /// Cost: allocates only while scratch grows to the largest shape seen and where an output changes its size
  void multiply(const RowMatrix& x, std::span<const Product> products);

  /// y += x · Wᵀ. Pre: y is not x
  /// Shape: x is [T, cols], y is [T, rows], or the rows of one from `first_row` on
  void multiply_add(const RowMatrix& x, const WeightMatrix& weights, RowMatrix& y, Index first_row = 0);

  /// gate = silu(x · Gᵀ) · (x · Uᵀ), the two products of a gated feed-forward block. `gate` and `up` are resized.
  /// Shape: x is [T, cols], gate and up become [T, rows]
  void multiply_gated(const RowMatrix& x, const WeightMatrix& gate_weights, const WeightMatrix& up_weights, RowMatrix& gate,
                      RowMatrix& up);

 private:
  void check(const RowMatrix& x, const WeightMatrix& weights) const;
  void quantize(const RowMatrix& x);
  bool uses_quantized(const WeightMatrix& weights) const;
  void multiply_panels(const RowMatrix& x, const WeightMatrix& weights, Index first, Index n, float* y, Index stride,
                       Store store) const;
  template <class F>
  void share(Index n_panels, Index least, F f) const;
  Index least_panels(const RowMatrix& x, const WeightMatrix& weights) const;

  tinyllm::ThreadPool& pool_;
  Activations activations_;
  const Kernels& kernels_;
  std::vector<std::int8_t> q_;      // [T, cols]
  std::vector<BlockScale> scales_;  // [T, cols / 32]
};

}  // namespace engine
