// SPDX-License-Identifier: Apache-2.0
// Kernels: the inner loops of the engine, once for each instruction set, chosen while the program runs.
//
//     const engine::Kernels& k = engine::best_kernels();
//     k.multiply(weights.panels(first, n), {x, x_stride, tokens}, {y, y_stride, engine::Store::overwrite});      // y = x·Wᵀ
//     k.quantize(x, cols, q, scales);                                                // a row of activations to 8 bits
//
// Units: strides count elements. Nothing needs alignment. Sums of a token's row do not depend on how many tokens come together.
// Errors: none; callers check shapes. Lifetime: the tables live as long as the program. Threads: any number.
#pragma once

#include "panels.hpp"

#include <tinyllm/core/cpu_level.hpp>
#include <tinyllm/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace engine {

/// What belongs to 32 quantised activations x ≈ scale · q.
struct BlockScale {
  float scale;
  float sum;                // scale · Σ q: of the quantised values, which a weight's minimum is multiplied by
  std::int32_t offsets[2];  // -128 · Σ q of each sixteen: what weights stored as unsigned bytes have too much
};

/// Float activations. Shape: [tokens, cols], rows `stride` apart
struct FloatRows {
  const float* data;
  Index stride;
  Index tokens;
};

/// Activations in blocks of 32: -127 <= q <= 127. Shape: q is [tokens, cols] and scales [tokens, cols / 32], both dense
struct QuantizedRows {
  const std::int8_t* q;
  const BlockScale* scales;
  Index tokens;
};

enum class Store { overwrite, add };

/// Where a product goes. Shape: [tokens, rows of the panels], rows `stride` apart
struct ProductRows {
  float* data;
  Index stride;
  Store store;
};

/// One implementation of every inner loop.
struct Kernels {
  const char* name;
  tinyllm::CpuLevel level;  ///< for attention beside it

  /// y[t, r] (+)= Σ_k x[t, k] · w[r, k], weights converted to float in registers. Every format.
  void (*multiply)(const Panels& w, const FloatRows& x, const ProductRows& y);

  /// The same with 8-bit activations and integer products. Pre: is_quantized(w.format)
  void (*multiply_quantized)(const Panels& w, const QuantizedRows& x, const ProductRows& y);

  /// x ≈ scale · q with scale = max |x| / 127 in each block, rounded to nearest even.
  /// Shape: x and q are [cols], scales [cols / 32]; cols is a multiple of 32
  void (*quantize)(const float* x, Index cols, std::int8_t* q, BlockScale* scales);

  /// out = x · weight / √(mean of x² + eps)
  void (*normalize)(const float* x, const float* weight, Index n, float eps, float* out);

  /// Turns pairs (2i, 2i + 1): x[2i] · c[2i] + x[2i + 1] · s[2i], and x[2i + 1] · c[2i + 1] + x[2i] · s[2i + 1].
  /// Shape: x, c and s are [n]; n is even
  void (*rotate)(float* x, const float* c, const float* s, Index n);

  /// gate = gate / (1 + exp(−gate)) · up
  void (*silu_multiply)(float* gate, const float* up, Index n);
};

/// The table of a level: `portable`, `avx2`, or `avx512_vnni`: AVX-512 with its integer dot products, beside the best attention
/// that the processor runs.
/// Null where the processor or the build lacks it.
const Kernels* portable_kernels();
const Kernels* avx2_kernels();
const Kernels* avx512_kernels();

/// Those that this processor runs, slowest first; at least the portable one.
std::vector<const Kernels*> every_kernels();

/// The fastest table that this processor can run.
const Kernels& best_kernels();

}  // namespace engine
