// SPDX-License-Identifier: Apache-2.0
// The text of the kernels that work on rows of activations, compiled once for each level beside kernels_text.hpp, which says
// how. A level brings `divide`, `swap_pairs` and `store_int8`, of whole numbers in floats.

namespace engine {
namespace ENGINE_LEVEL {
namespace {

// Adding and taking away 1.5 · 2^23 rounds to the nearest integer, ties to even.
TINYLLM_INLINE Lanes rounded(Lanes x) {
  const Lanes magic = broadcast(12582912.0F);
  return subtract(add(x, magic), magic);
}

void quantize(const float* x, Index cols, std::int8_t* q, BlockScale* scales) {
  constexpr int parts = 32 / static_cast<int>(width);
  for (Index k = 0; k < cols; k += 32, ++scales) {
    Lanes largest = zero();
    TINYLLM_UNROLL for (int i = 0; i < parts; ++i) {
      const Lanes value = load(x + k + i * width);
      largest = maximum(largest, maximum(value, subtract(zero(), value)));
    }
    const float most = horizontal_maximum(largest);
    // Blocks that are nothing but zeros, or so small that 1 / scale overflows, are zeros.
    const bool visible = most > 1e-35F;
    const Lanes factor = broadcast(visible ? 127.0F / most : 0.0F);
    float sums[2];
    TINYLLM_UNROLL for (int half = 0; half < 2; ++half) {
      Lanes sum = zero();
      TINYLLM_UNROLL for (int i = half * parts / 2; i < (half + 1) * parts / 2; ++i) {
        const Lanes value = rounded(multiply(load(x + k + i * width), factor));
        store_int8(q + k + i * width, value);
        sum = add(sum, value);
      }
      sums[half] = horizontal_sum(sum);  // of small integers: exact
    }
    const float both_sums = sums[0] + sums[1];
    const bool numbers = both_sums == both_sums;  // infinities have become not a number, too, and make the results so
    scales->scale = !numbers ? both_sums : visible ? most / 127.0F : 0.0F;
    scales->sum = scales->scale * both_sums;
    for (int half = 0; half < 2; ++half) scales->offsets[half] = numbers ? -128 * static_cast<std::int32_t>(sums[half]) : 0;
  }
}

void normalize(const float* x, const float* weight, Index n, float eps, float* out) {
  Lanes squares = zero();
  Index i = 0;
  for (; i + width <= n; i += width) squares = fma(load(x + i), load(x + i), squares);
  float sum = horizontal_sum(squares);
  for (; i < n; ++i) sum += x[i] * x[i];
  const float factor = 1.0F / __builtin_sqrtf(sum / static_cast<float>(n) + eps);
  for (i = 0; i + width <= n; i += width) store(out + i, multiply(multiply(load(x + i), broadcast(factor)), load(weight + i)));
  for (; i < n; ++i) out[i] = x[i] * factor * weight[i];
}

void rotate(float* x, const float* c, const float* s, Index n) {
  Index i = 0;
  for (; i + width <= n; i += width) {
    const Lanes value = load(x + i);
    store(x + i, fma(value, load(c + i), multiply(swap_pairs(value), load(s + i))));
  }
  for (; i < n; i += 2) {
    const float even = x[i];
    x[i] = even * c[i] + x[i + 1] * s[i];
    x[i + 1] = x[i + 1] * c[i + 1] + even * s[i + 1];
  }
}

TINYLLM_INLINE Lanes silu(Lanes gate) {
  // exp(−gate), large enough at 2^126 to make the quotient vanish.
  const Lanes power = maximum(broadcast(-126.0F), multiply(gate, broadcast(1.44269504F)));
  return divide(gate, add(broadcast(1.0F), exp2(subtract(zero(), power))));
}

void silu_multiply(float* gate, const float* up, Index n) {
  Index i = 0;
  for (; i + width <= n; i += width) store(gate + i, multiply(silu(load(gate + i)), load(up + i)));
  for (; i < n; ++i) {
    float value[width];
    store(value, silu(broadcast(gate[i])));
    gate[i] = value[0] * up[i];
  }
}

}  // namespace
}  // namespace ENGINE_LEVEL
}  // namespace engine
