// SPDX-License-Identifier: Apache-2.0
// Four float lanes in the compiler's own vector notation: SSE2 on x86-64, NEON on 64-bit ARM, plain code elsewhere.
//
//     portable::Lanes sum = portable::fma(portable::load(a), portable::load(b), portable::zero());
//
// Internal. Every level's namespace has the same functions. `load_pair` reads 2·width stored elements as floats, perhaps as
// the even and the odd ones (`splits_pairs`); whoever meets such elements must order its own the same way.
#pragma once

#include <tinyllm/core/simd_region.hpp>
#include <tinyllm/core/types.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace portable {

using FloatVector = float __attribute__((vector_size(16)));
using IntVector = std::int32_t __attribute__((vector_size(16)));
using ShortVector = std::uint16_t __attribute__((vector_size(8)));

struct Lanes {
  FloatVector v;
};
inline constexpr Index width = 4;
#if defined(__aarch64__)
inline constexpr int n_registers = 32;
#else
inline constexpr int n_registers = 16;
#endif

/// Whether load_pair gives the even and the odd elements rather than the first and the second half.
template <class Dtype>
inline constexpr bool splits_pairs = false;

TINYLLM_INLINE FloatVector as_float(IntVector v) { return reinterpret_cast<FloatVector>(v); }
TINYLLM_INLINE IntVector as_int(FloatVector v) { return reinterpret_cast<IntVector>(v); }

TINYLLM_INLINE Lanes zero() { return {FloatVector{0, 0, 0, 0}}; }
TINYLLM_INLINE Lanes broadcast(float x) { return {FloatVector{x, x, x, x}}; }
TINYLLM_INLINE Lanes load(const float* p) {
  Lanes x;
  std::memcpy(&x.v, p, sizeof x.v);
  return x;
}
TINYLLM_INLINE void store(float* p, Lanes x) { std::memcpy(p, &x.v, sizeof x.v); }
TINYLLM_INLINE Lanes add(Lanes a, Lanes b) { return {a.v + b.v}; }
TINYLLM_INLINE Lanes subtract(Lanes a, Lanes b) { return {a.v - b.v}; }
TINYLLM_INLINE Lanes multiply(Lanes a, Lanes b) { return {a.v * b.v}; }
/// a·b + c, rounded once where the processor can.
TINYLLM_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return {a.v * b.v + c.v}; }
/// The larger one; b if one of them is not a number.
TINYLLM_INLINE Lanes maximum(Lanes a, Lanes b) {
  const IntVector larger = a.v > b.v;
  return {as_float((as_int(a.v) & larger) | (as_int(b.v) & ~larger))};
}

TINYLLM_INLINE float horizontal_sum(Lanes a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
TINYLLM_INLINE float horizontal_maximum(Lanes a) {
  const float x = a.v[0] > a.v[1] ? a.v[0] : a.v[1];
  const float y = a.v[2] > a.v[3] ? a.v[2] : a.v[3];
  return x > y ? x : y;
}
/// The four sums over lanes.
TINYLLM_INLINE void store_sums(Lanes a, Lanes b, Lanes c, Lanes d, float* out) {
  const FloatVector ab = __builtin_shufflevector(a.v, b.v, 0, 4, 1, 5) + __builtin_shufflevector(a.v, b.v, 2, 6, 3, 7);
  const FloatVector cd = __builtin_shufflevector(c.v, d.v, 0, 4, 1, 5) + __builtin_shufflevector(c.v, d.v, 2, 6, 3, 7);
  store(out, {__builtin_shufflevector(ab, cd, 0, 1, 4, 5) + __builtin_shufflevector(ab, cd, 2, 3, 6, 7)});
}

/// 2^x for x <= 127; 0 below -125; not a number stays so.
TINYLLM_INLINE Lanes exp2(Lanes x) {
  const Lanes lowest = broadcast(-125.0F);
  const Lanes magic = broadcast(12583039.0F);  // 1.5 · 2^23 + 127: adding it rounds to an integer, an exponent in the low bits
  const Lanes clamped = maximum(lowest, x);
  const Lanes shifted = add(clamped, magic);
  const Lanes f = subtract(clamped, subtract(shifted, magic));
  Lanes p = broadcast(1.535336188319500e-4F);
  p = fma(p, f, broadcast(1.339887440266574e-3F));
  p = fma(p, f, broadcast(9.618437357674640e-3F));
  p = fma(p, f, broadcast(5.550332471162809e-2F));
  p = fma(p, f, broadcast(2.402264791363012e-1F));
  p = fma(p, f, broadcast(6.931472028550421e-1F));
  p = fma(p, f, broadcast(1.0F));
  using Bits = std::uint32_t __attribute__((vector_size(16)));
  const FloatVector power = reinterpret_cast<FloatVector>(reinterpret_cast<Bits>(shifted.v) << 23);
  return {as_float(as_int(p.v * power) & ~(x.v < lowest.v))};
}

TINYLLM_INLINE Lanes load_stored(const float* p) { return load(p); }
TINYLLM_INLINE Lanes load_stored(const Eigen::half* p) {
#if defined(__aarch64__)
  return {
      reinterpret_cast<FloatVector>(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const std::uint16_t*>(p)))))};
#else
  ShortVector bits;
  std::memcpy(&bits, p, sizeof bits);
  const IntVector wide = __builtin_convertvector(bits, IntVector);
  const IntVector magnitude = wide & 0x7fff;
  // The exponents differ by 112, and a product with 2^112 also makes subnormal halves normal.
  const FloatVector value = as_float(magnitude << 13) * 0x1p112F;
  const IntVector special = (magnitude > 0x7bff) & 0x7f800000;  // infinities and not a number keep the highest exponent
  return {as_float(as_int(value) | special | ((wide & 0x8000) << 16))};
#endif
}
TINYLLM_INLINE Lanes load_stored(const Eigen::bfloat16* p) {
  ShortVector bits;
  std::memcpy(&bits, p, sizeof bits);
  return {as_float(__builtin_convertvector(bits, IntVector) << 16)};
}

TINYLLM_INLINE Lanes load_stored(const std::int8_t* p) {
  return {FloatVector{static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]), static_cast<float>(p[3])}};
}

/// 2·width elements as floats.
template <class Dtype>
TINYLLM_INLINE void load_pair(const Dtype* p, Lanes& a, Lanes& b) {
  a = load_stored(p);
  b = load_stored(p + width);
}
/// n < 2·width elements, then zeros; nothing behind them is read.
template <class Dtype>
TINYLLM_INLINE void load_pair_part(const Dtype* p, Index n, Lanes& a, Lanes& b) {
  alignas(16) unsigned char bytes[2 * sizeof(Dtype) * static_cast<std::size_t>(width)] = {};
  std::memcpy(bytes, p, static_cast<std::size_t>(n) * sizeof(Dtype));
  load_pair(reinterpret_cast<const Dtype*>(bytes), a, b);
}

// The bits of |x|: as integers they are in the order of the magnitudes, with infinity before not a number.
inline constexpr std::uint32_t infinity_bits = 0x7f800000U;

TINYLLM_INLINE void store_stored(float* p, Lanes x) { store(p, x); }
TINYLLM_INLINE void store_stored(Eigen::half* p, Lanes x) {
  std::uint32_t bits[width];
  std::uint16_t halves[width];
  std::memcpy(bits, &x, sizeof bits);
  for (Index i = 0; i < width; ++i) {
    const std::uint32_t magnitude = bits[i] & 0x7fffffffU;
    std::uint32_t rounded = 0;
    if (magnitude >= 0x47800000U) {  // 65536 and more
      rounded = magnitude > infinity_bits ? 0x7e00U : 0x7c00U;
    } else if (magnitude < 0x38800000U) {  // subnormal as a half: a sum with 0.5 leaves the rounded digits in the low bits
      float value = 0;
      std::memcpy(&value, &magnitude, sizeof value);
      value += 0.5F;
      std::memcpy(&rounded, &value, sizeof rounded);
      rounded -= 0x3f000000U;
    } else {
      rounded = (magnitude - 0x38000000U + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
    }
    halves[i] = static_cast<std::uint16_t>(rounded | ((bits[i] >> 16) & 0x8000U));
  }
  std::memcpy(static_cast<void*>(p), halves, sizeof halves);
}
TINYLLM_INLINE void store_stored(Eigen::bfloat16* p, Lanes x) {
  std::uint32_t bits[width];
  std::uint16_t halves[width];
  std::memcpy(bits, &x, sizeof bits);
  for (Index i = 0; i < width; ++i) {
    const bool number = (bits[i] & 0x7fffffffU) <= infinity_bits;
    const std::uint32_t rounded = number ? bits[i] + 0x7fffU + ((bits[i] >> 16) & 1U) : bits[i] | 0x400000U;
    halves[i] = static_cast<std::uint16_t>(rounded >> 16);
  }
  std::memcpy(static_cast<void*>(p), halves, sizeof halves);
}
/// Rounds to the nearest integer, ties to even. Pre: |x| < 127.5
TINYLLM_INLINE void store_stored(std::int8_t* p, Lanes x) {
  const IntVector whole = as_int(add(x, broadcast(12582912.0F)).v) - as_int(broadcast(12582912.0F).v);
  for (Index i = 0; i < width; ++i) p[i] = static_cast<std::int8_t>(whole[i]);
}
TINYLLM_INLINE Lanes absolute(Lanes x) { return {as_float(as_int(x.v) & 0x7fffffff)}; }
/// Whether a > b in any lane.
TINYLLM_INLINE bool any_above(Lanes a, Lanes b) {
  const IntVector above = a.v > b.v;
  return (above[0] | above[1] | above[2] | above[3]) != 0;
}
/// How many lanes are finite with a magnitude whose bits are at least `least`.
TINYLLM_INLINE std::size_t count_finite_from(Lanes x, std::uint32_t least) {
  std::uint32_t bits[width];
  std::memcpy(bits, &x, sizeof bits);
  std::size_t count = 0;
  for (Index i = 0; i < width; ++i) {
    const std::uint32_t magnitude = bits[i] & 0x7fffffffU;
    count += static_cast<std::size_t>(magnitude >= least && magnitude < infinity_bits);
  }
  return count;
}

/// a·b, rounded before anything is added to it: whatever the compiler may fuse, every level gets the same bits.
TINYLLM_INLINE Lanes product(Lanes a, Lanes b) {
  Lanes ab = {a.v * b.v};
#if defined(__x86_64__)
  __asm__("" : "+x"(ab.v));
#elif defined(__aarch64__)
  __asm__("" : "+w"(ab.v));
#else
  __asm__("" : "+m"(ab.v));
#endif
  return ab;
}
/// Adds y where x >= bound; what is not a number is not.
TINYLLM_INLINE Lanes add_at_least(Lanes sum, Lanes x, Lanes bound, Lanes y) {
  const IntVector reached = x.v >= bound.v;
  return {sum.v + as_float(as_int(y.v) & reached)};
}
/// Bit i: x[i] >= bound[i].
TINYLLM_INLINE unsigned bits_at_least(Lanes x, Lanes bound) {
  const IntVector reached = (x.v >= bound.v) & IntVector{1, 2, 4, 8};
  return static_cast<unsigned>(reached[0] | reached[1] | reached[2] | reached[3]);
}
/// x·2^n, where shifted = n + 1.5·2^23 as a float; any bits for other n.
TINYLLM_INLINE Lanes times_power(Lanes x, Lanes shifted) {
  using Bits = std::uint32_t __attribute__((vector_size(16)));
  return {reinterpret_cast<FloatVector>(reinterpret_cast<Bits>(x.v) + (reinterpret_cast<Bits>(shifted.v) << 23))};
}

}  // namespace portable
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
