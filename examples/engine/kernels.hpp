// SPDX-License-Identifier: Apache-2.0
// Kernels: the inner loops of the engine, once for any processor and once for AVX2, chosen while the program runs.
//
//     const engine::Kernels& k = engine::best_kernels();
//     k.dot_rows(weights, x, cols, 1, y, n_rows);                 // y = W·x, straight from the file's bytes
//     k.unpack(TensorType::Q4_1, row, cols, floats);              // one row as floats
//
// Units: strides count floats; `row_bytes` counts bytes. Nothing needs alignment.
// Errors: none; callers check shapes. Lifetime: the tables live as long as the program. Threads: any number.
#pragma once

#include "gguf.hpp"

#include <tinyllm/core/types.hpp>

#include <cstddef>

namespace engine {

using tinyllm::Index;

/// Tokens that one tile of the blocked product handles at once: activations are packed to [cols, 16] for it.
inline constexpr Index tile_lanes = 16;

/// Most activation rows that `dot_rows` and `add_rows` take in one call.
inline constexpr Index max_dot_rows = 4;

/// Rows of stored numbers, one after the other.
/// Shape: [rows, cols]
struct StoredMatrix {
  TensorType type;
  const std::byte* data;
  std::size_t row_bytes;
  Index rows;
  Index cols;
};

/// A matrix of floats whose rows are `row` apart and whose columns are `col` apart.
/// Shape: [rows, cols]
struct StridedFloats {
  const float* data;
  Index row;
  Index col;
  Index rows;
  Index cols;
};

/// What a tile does with what its output holds.
enum class TileOutput { overwrite, add };

/// The running maximum and sum of sixteen softmaxes, and what the last step multiplied older results by.
struct SoftmaxLanes {
  float maximum[tile_lanes];
  float sum[tile_lanes];
  float rescale[tile_lanes];
};

/// One implementation of every inner loop.
struct Kernels {
  const char* name;

  /// y[i, r] = Σ_k x[i, k] · w[r, k], numbers converted in registers.
  /// Shape: x is [n, cols] at `x_stride`, y is [n, rows] at `y_stride`, 1 <= n <= max_dot_rows
  void (*dot_rows)(const StoredMatrix& w, const float* x, Index x_stride, Index n, float* y, Index y_stride);

  /// out[i, c] += Σ_r p[i, r] · w[r, c], for F32, F16 and BF16.
  /// Shape: p is [n, rows] at `p_stride`, out is [n, cols] at `out_stride`, 1 <= n <= max_dot_rows
  void (*add_rows)(const StoredMatrix& w, const float* p, Index p_stride, Index n, float* out, Index out_stride);

  /// Writes one row as floats.
  void (*unpack)(TensorType type, const std::byte* row, Index cols, float* out);

  /// c[r, lane] (+)= Σ_k w[r, k] · x[k, lane].
  /// Shape: x is [w.cols, 16], c is [w.rows, 16], both dense
  void (*tile)(const StridedFloats& w, const float* x, float* c, TileOutput output);

  /// One step of sixteen softmaxes over n more scores: s = exp(s − maximum), with maximum, sum and rescale brought up
  /// to date. A score of −inf gives 0; a lane that has seen only −inf keeps a sum of 0.
  /// Shape: s is [n, 16]
  void (*softmax_lanes)(float* s, Index n, SoftmaxLanes& lanes);

  /// x = exp(x − maximum); returns the sum. Pre: maximum is finite.
  float (*exp_minus)(float* x, Index n, float maximum);

  /// gate = gate / (1 + exp(−gate)) · up
  void (*silu_multiply)(float* gate, const float* up, Index n);
};

/// Plain C++, for any processor.
const Kernels& portable_kernels();

/// AVX2, FMA and F16C; null where the processor or the build has none.
const Kernels* avx2_kernels();

/// The fastest table that this processor can run.
const Kernels& best_kernels();

}  // namespace engine
