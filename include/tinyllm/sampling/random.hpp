// SPDX-License-Identifier: Apache-2.0
// A request's own stream of random numbers, the same with every compiler and standard library.
//
//     Rng rng = request_rng(params.seed);
//     double u = uniform(rng);              // [0, 1), a multiple of 2^-53
//
// The engine's output is fixed by the C++ standard; the conversion, which the standard leaves open, is written out here.
#pragma once

#include <cstdint>
#include <random>

namespace tinyllm {

/// Source: Matsumoto and Nishimura, 64-bit Mersenne Twister, 2000; [rand.predef] in the C++ standard
using Rng = std::mt19937_64;

/// The stream of a request; its seed is 0 if it names none.
inline Rng request_rng(std::uint64_t seed = 0) { return Rng(seed); }

/// The next number in [0, 1): the upper 53 bits of one draw.
inline double uniform(Rng& rng) { return static_cast<double>(rng() >> 11U) * 0x1.0p-53; }

}  // namespace tinyllm
