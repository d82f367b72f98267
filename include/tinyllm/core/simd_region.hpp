// SPDX-License-Identifier: Apache-2.0
// Regions of code compiled for one instruction set, whatever flags the file is compiled with.
//
//     TINYLLM_TARGET_AVX2_BEGIN
//     namespace tinyllm { inline namespace TINYLLM_BUILD { namespace avx2 { ... } } }
//     TINYLLM_TARGET_END
//
// Every function defined in a region may use that instruction set. Two rules keep a program right whose files are compiled
// with different flags, because the linker keeps one copy of each inline function and does not look at its flags:
// what a region defines lies in a namespace of its own, and inside the inline namespace TINYLLM_BUILD, whose name says what
// the whole file is compiled for; and a region defines, and calls, no template of anybody else's.
// Include every other header before a region begins. Macros that begin with TINYLLM_ are the library's.
#pragma once

#define TINYLLM_PRAGMA(text) _Pragma(#text)

/// A function that has no copy of its own: it takes the instruction set of its caller, which must be in the same region.
#define TINYLLM_INLINE [[gnu::always_inline]] inline

/// The same for a lambda, behind its parameters.
#define TINYLLM_INLINE_LAMBDA __attribute__((always_inline))

// Fixed loops over registers must be unrolled at every level of optimisation, or the registers become memory.
#if defined(__clang__)
#define TINYLLM_UNROLL TINYLLM_PRAGMA(clang loop unroll(full))
#define TINYLLM_TARGET_BEGIN(names) TINYLLM_PRAGMA(clang attribute push(__attribute__((target(names))), apply_to = function))
#define TINYLLM_TARGET_END TINYLLM_PRAGMA(clang attribute pop)
#else
#define TINYLLM_UNROLL TINYLLM_PRAGMA(GCC unroll 16)
// g++ 12 warns of the undefined vectors that its own AVX-512 header makes on purpose.
#define TINYLLM_TARGET_BEGIN(names)                        \
  TINYLLM_PRAGMA(GCC push_options)                         \
  TINYLLM_PRAGMA(GCC target(names))                        \
  TINYLLM_PRAGMA(GCC diagnostic push)                      \
  TINYLLM_PRAGMA(GCC diagnostic ignored "-Wuninitialized") \
  TINYLLM_PRAGMA(GCC diagnostic ignored "-Wmaybe-uninitialized")
#define TINYLLM_TARGET_END TINYLLM_PRAGMA(GCC diagnostic pop) TINYLLM_PRAGMA(GCC pop_options)
#endif

// Whether the regions below can be compiled at all.
#if defined(__x86_64__) && defined(__GNUC__)
#define TINYLLM_X86_LEVELS 1
#define TINYLLM_TARGET_AVX2_BEGIN TINYLLM_TARGET_BEGIN("avx2,fma,f16c")
#define TINYLLM_TARGET_AVX512_BEGIN TINYLLM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
#define TINYLLM_TARGET_AVX512_VNNI_BEGIN TINYLLM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#define TINYLLM_TARGET_AVX512_BF16_BEGIN TINYLLM_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
#else
#define TINYLLM_X86_LEVELS 0
#endif

// TINYLLM_BUILD: built_ and one digit for each instruction set that the flags of this file allow.
#if defined(__SSE4_1__)
#define TINYLLM_FLAG_SSE41 1
#else
#define TINYLLM_FLAG_SSE41 0
#endif
#if defined(__AVX__)
#define TINYLLM_FLAG_AVX 1
#else
#define TINYLLM_FLAG_AVX 0
#endif
#if defined(__AVX2__)
#define TINYLLM_FLAG_AVX2 1
#else
#define TINYLLM_FLAG_AVX2 0
#endif
#if defined(__FMA__)
#define TINYLLM_FLAG_FMA 1
#else
#define TINYLLM_FLAG_FMA 0
#endif
#if defined(__AVX512F__)
#define TINYLLM_FLAG_AVX512 1
#else
#define TINYLLM_FLAG_AVX512 0
#endif
#if defined(__AVX512BW__)
#define TINYLLM_FLAG_AVX512BW 1
#else
#define TINYLLM_FLAG_AVX512BW 0
#endif
#if defined(__AVX512BF16__) || defined(__AVX512FP16__)
#define TINYLLM_FLAG_AVX51216 1
#else
#define TINYLLM_FLAG_AVX51216 0
#endif

#define TINYLLM_JOIN_(a, b, c, d, e, f, g) built_##a##b##c##d##e##f##g
#define TINYLLM_JOIN(a, b, c, d, e, f, g) TINYLLM_JOIN_(a, b, c, d, e, f, g)
#define TINYLLM_BUILD                                                                                          \
  TINYLLM_JOIN(TINYLLM_FLAG_SSE41, TINYLLM_FLAG_AVX, TINYLLM_FLAG_AVX2, TINYLLM_FLAG_FMA, TINYLLM_FLAG_AVX512, \
               TINYLLM_FLAG_AVX512BW, TINYLLM_FLAG_AVX51216)
