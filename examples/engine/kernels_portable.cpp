// SPDX-License-Identifier: Apache-2.0
#include "kernels.hpp"

#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/simd_portable.hpp>
#include <tinyllm/core/simd_region.hpp>

#include <cstring>

namespace engine {
namespace portable {
namespace {

using tinyllm::portable::IntVector;
using tinyllm::portable::Lanes;

inline constexpr Index most_tokens = 4;

// Four bytes of four rows.
using Quads = std::uint32_t __attribute__((vector_size(16)));

struct WeightBytes {
  Quads v;
};
TINYLLM_INLINE WeightBytes load_bytes(const std::byte* p) {
  WeightBytes w;
  std::memcpy(&w, p, sizeof w);
  return w;
}
TINYLLM_INLINE WeightBytes low_nibbles(WeightBytes w) { return {w.v & 0x0F0F0F0FU}; }
TINYLLM_INLINE WeightBytes next_nibble(WeightBytes w) { return {w.v >> 4}; }
TINYLLM_INLINE WeightBytes next_byte(WeightBytes w) { return {w.v >> 8}; }
TINYLLM_INLINE WeightBytes high_nibbles(WeightBytes w) { return low_nibbles(next_nibble(w)); }
TINYLLM_INLINE Lanes first_nibble(WeightBytes w) {
  return {__builtin_convertvector(reinterpret_cast<IntVector>(w.v & 15U), tinyllm::portable::FloatVector)};
}
TINYLLM_INLINE Lanes first_byte(WeightBytes w) {
  return {__builtin_convertvector(reinterpret_cast<IntVector>(w.v & 255U), tinyllm::portable::FloatVector)};
}

struct IntSum {
  IntVector v;
};
using NibbleSum = IntSum;
using ByteSum = IntSum;
TINYLLM_INLINE IntSum no_nibbles() { return {IntVector{0, 0, 0, 0}}; }
TINYLLM_INLINE IntSum no_bytes(std::int32_t offset) { return {IntVector{offset, offset, offset, offset}}; }
TINYLLM_INLINE void add_nibbles(IntSum& sum, WeightBytes w, const std::int8_t* x) {
  const IntVector mask = {255, 255, 255, 255};
  const auto bytes = reinterpret_cast<IntVector>(w.v);
  sum.v += (bytes & mask) * static_cast<std::int32_t>(x[0]);
  sum.v += ((bytes >> 8) & mask) * static_cast<std::int32_t>(x[1]);
  sum.v += ((bytes >> 16) & mask) * static_cast<std::int32_t>(x[2]);
  sum.v += ((bytes >> 24) & mask) * static_cast<std::int32_t>(x[3]);
}
TINYLLM_INLINE void add_bytes(IntSum& sum, WeightBytes w, const std::int8_t* x) { add_nibbles(sum, w, x); }
TINYLLM_INLINE IntSum both(IntSum a, IntSum b) { return {a.v + b.v}; }
TINYLLM_INLINE Lanes to_lanes(IntSum sum) { return {__builtin_convertvector(sum.v, tinyllm::portable::FloatVector)}; }
TINYLLM_INLINE void pin(IntSum&) {}

TINYLLM_INLINE Lanes divide(Lanes a, Lanes b) { return {a.v / b.v}; }
TINYLLM_INLINE Lanes swap_pairs(Lanes a) { return {__builtin_shufflevector(a.v, a.v, 1, 0, 3, 2)}; }
TINYLLM_INLINE void store_int8(std::int8_t* to, Lanes x) {
  // In a block that holds a NaN anything may stand; it has no scale either.
  for (int i = 0; i < 4; ++i) to[i] = x.v[i] >= -127 && x.v[i] <= 127 ? static_cast<std::int8_t>(x.v[i]) : std::int8_t{0};
}

}  // namespace
}  // namespace portable
}  // namespace engine
#define ENGINE_LEVEL portable
#include "kernels_text.hpp"

#include "kernels_rows_text.hpp"

namespace engine {

const Kernels* portable_kernels() {
  static constexpr Kernels table{
      "portable",         tinyllm::CpuLevel::portable, portable::multiply_floats, portable::multiply_quantized,
      portable::quantize, portable::normalize,         portable::rotate,          portable::silu_multiply};
  return &table;
}

std::vector<const Kernels*> every_kernels() {
  std::vector<const Kernels*> tables;
  for (const Kernels* const table : {portable_kernels(), avx2_kernels(), avx512_kernels()}) {
    if (table != nullptr) tables.push_back(table);
  }
  return tables;
}

const Kernels& best_kernels() {
  static const Kernels* const best = every_kernels().back();
  return *best;
}

}  // namespace engine
