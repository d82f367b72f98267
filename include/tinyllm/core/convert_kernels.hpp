// SPDX-License-Identifier: Apache-2.0
// Loops that convert rows of numbers between float and the storage types, once for each level.
//
//     #define TINYLLM_LEVEL avx2
//     TINYLLM_TARGET_AVX2_BEGIN
//     #include <tinyllm/core/convert_kernels.hpp>
//
// Internal, and empty unless TINYLLM_LEVEL is defined: dtype.hpp includes this text once for each level, inside the level's
// region, so there is no #pragma once here.
#ifdef TINYLLM_LEVEL
namespace tinyllm {
inline namespace TINYLLM_BUILD {
namespace TINYLLM_LEVEL {

template <class Dtype>
inline void widen_row(const Dtype* source, Index count, float* destination) {
  Index i = 0;
  for (; i + width <= count; i += width) store(destination + i, load_stored(source + i));
  if (i < count) {
    alignas(64) unsigned char bytes[sizeof(Dtype) * static_cast<std::size_t>(width)] = {};
    float floats[width];
    std::memcpy(bytes, source + i, static_cast<std::size_t>(count - i) * sizeof(Dtype));
    store(floats, load_stored(reinterpret_cast<const Dtype*>(bytes)));
    std::memcpy(destination + i, floats, static_cast<std::size_t>(count - i) * sizeof(float));
  }
}

/// `least_bits`: the bits of the smallest float that becomes infinite.
template <class Dtype>
inline std::size_t narrow_row(const float* source, Index count, Dtype* destination, std::uint32_t least_bits) {
  std::size_t overflowed = 0;
  Index i = 0;
  for (; i + width <= count; i += width) {
    const Lanes x = load(source + i);
    store_stored(destination + i, x);
    overflowed += count_finite_from(x, least_bits);
  }
  if (i < count) {
    float floats[width] = {};
    alignas(64) unsigned char bytes[sizeof(Dtype) * static_cast<std::size_t>(width)];
    std::memcpy(floats, source + i, static_cast<std::size_t>(count - i) * sizeof(float));
    const Lanes x = load(floats);
    store_stored(reinterpret_cast<Dtype*>(bytes), x);
    std::memcpy(static_cast<void*>(destination + i), bytes, static_cast<std::size_t>(count - i) * sizeof(Dtype));
    overflowed += count_finite_from(x, least_bits);
  }
  return overflowed;
}

/// Whether all of a row is finite, and the largest magnitude.
inline bool largest_magnitude(const float* row, Index count, float& largest) {
  Lanes highest = zero();
  Lanes zeros = zero();  // or what is not a number, once something was not finite
  Index i = 0;
  const auto look = [&](Lanes x) {
    highest = maximum(absolute(x), highest);
    zeros = fma(x, zero(), zeros);
  };
  for (; i + width <= count; i += width) look(load(row + i));
  if (i < count) {
    float rest[width] = {};
    std::memcpy(rest, row + i, static_cast<std::size_t>(count - i) * sizeof(float));
    look(load(rest));
  }
  largest = horizontal_maximum(highest);
  return horizontal_sum(zeros) == 0.0F;
}

/// destination = source · factor, rounded to the nearest integer.
inline void quantize_row(const float* source, Index count, float factor, std::int8_t* destination) {
  const Lanes factors = broadcast(factor);
  Index i = 0;
  for (; i + width <= count; i += width) store_stored(destination + i, multiply(load(source + i), factors));
  if (i < count) {
    float rest[width] = {};
    std::int8_t rounded[width];
    std::memcpy(rest, source + i, static_cast<std::size_t>(count - i) * sizeof(float));
    store_stored(rounded, multiply(load(rest), factors));
    std::memcpy(destination + i, rounded, static_cast<std::size_t>(count - i));
  }
}

}  // namespace TINYLLM_LEVEL
}  // namespace TINYLLM_BUILD
}  // namespace tinyllm
#endif
