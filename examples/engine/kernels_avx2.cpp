// SPDX-License-Identifier: Apache-2.0
#include "kernels.hpp"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>

#include <cstdint>
#include <cstring>

// Every function below the helpers of the processor check carries its target itself, calls only intrinsics and helpers
// of the same target, and is local to this file: no template or inline function of another header can be compiled for
// AVX2 here and then be picked by the linker for the whole program.
#define ENGINE_AVX2 __attribute__((target("avx2,fma,f16c")))
#define ENGINE_AVX2_INLINE __attribute__((target("avx2,fma,f16c"), always_inline)) static inline
#if defined(__clang__)
#define ENGINE_UNROLL _Pragma("unroll")
#else
#define ENGINE_UNROLL _Pragma("GCC unroll 8")
#endif

namespace engine {
namespace {

// Sizes of arrays, which g++ wants unsigned.
template <int N>
inline constexpr std::size_t count = N;

struct Four {
  __m256 v[4];  // 32 numbers
};

ENGINE_AVX2_INLINE float sum_of(__m256 v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  s = _mm_add_ss(s, _mm_movehdup_ps(s));
  return _mm_cvtss_f32(s);
}

ENGINE_AVX2_INLINE __m256 eight_bytes(__m128i bytes) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)); }

// A half in all lanes.
ENGINE_AVX2_INLINE __m256 scale_at(const std::byte* p) {
  std::uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(bits)));
}

// 16 bytes of nibbles: q of the low nibbles in v[0..1], of the high ones in v[2..3].
ENGINE_AVX2_INLINE Four nibbles(const std::byte* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  const __m128i mask = _mm_set1_epi8(15);
  const __m128i low = _mm_and_si128(bytes, mask);
  const __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), mask);
  return {{eight_bytes(low), eight_bytes(_mm_srli_si128(low, 8)), eight_bytes(high), eight_bytes(_mm_srli_si128(high, 8))}};
}

// Readers: 32 numbers of one format as floats; those without blocks also give eight numbers, and one, for the ends.

struct ReadF32 {
  static constexpr Index bytes = 128;
  ENGINE_AVX2_INLINE __m256 eight(const std::byte* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
  ENGINE_AVX2_INLINE float one(const std::byte* p) {
    float value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }
  ENGINE_AVX2_INLINE Four read(const std::byte* p) { return {{eight(p), eight(p + 32), eight(p + 64), eight(p + 96)}}; }
};

struct ReadF16 {
  static constexpr Index bytes = 64;
  ENGINE_AVX2_INLINE __m256 eight(const std::byte* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  ENGINE_AVX2_INLINE float one(const std::byte* p) { return _mm256_cvtss_f32(scale_at(p)); }
  ENGINE_AVX2_INLINE Four read(const std::byte* p) { return {{eight(p), eight(p + 16), eight(p + 32), eight(p + 48)}}; }
};

struct ReadBF16 {
  static constexpr Index bytes = 64;
  ENGINE_AVX2_INLINE __m256 eight(const std::byte* p) {
    const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
  }
  ENGINE_AVX2_INLINE float one(const std::byte* p) {
    std::uint16_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(static_cast<int>(static_cast<std::uint32_t>(bits) << 16))));
  }
  ENGINE_AVX2_INLINE Four read(const std::byte* p) { return {{eight(p), eight(p + 16), eight(p + 32), eight(p + 48)}}; }
};

struct ReadQ8_0 {
  static constexpr Index bytes = 34;
  ENGINE_AVX2_INLINE Four read(const std::byte* p) {
    const __m256 d = scale_at(p);
    Four w;
    ENGINE_UNROLL for (int i = 0; i < 4; ++i) {
      w.v[i] = _mm256_mul_ps(d, eight_bytes(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 2 + 8 * i))));
    }
    return w;
  }
};

struct ReadQ4_0 {
  static constexpr Index bytes = 18;
  ENGINE_AVX2_INLINE Four read(const std::byte* p) {
    const __m256 d = scale_at(p);
    const __m256 zero = _mm256_mul_ps(d, _mm256_set1_ps(-8.0F));
    Four w = nibbles(p + 2);
    ENGINE_UNROLL for (int i = 0; i < 4; ++i) w.v[i] = _mm256_fmadd_ps(d, w.v[i], zero);
    return w;
  }
};

struct ReadQ4_1 {
  static constexpr Index bytes = 20;
  ENGINE_AVX2_INLINE Four read(const std::byte* p) {
    const __m256 d = scale_at(p);
    const __m256 m = scale_at(p + 2);
    Four w = nibbles(p + 4);
    ENGINE_UNROLL for (int i = 0; i < 4; ++i) w.v[i] = _mm256_fmadd_ps(d, w.v[i], m);
    return w;
  }
};

template <class Reader>
inline constexpr bool has_ends = requires(const std::byte* p) {
  Reader::one(p);
};

// Several accumulators a sum hide the latency of a multiply-add; N·A + 4 weights must fit 16 registers.
template <class Reader, int N>
ENGINE_AVX2 void dot_rows_of(const StoredMatrix& w, const float* x, Index x_stride, float* y, Index y_stride) {
  constexpr int A = N == 1 ? 4 : 2;
  const Index whole = w.cols / 32;
  for (Index r = 0; r < w.rows; ++r) {
    const std::byte* p = w.data + static_cast<std::size_t>(r) * w.row_bytes;
    __m256 sums[count<N>][count<A>];
    ENGINE_UNROLL for (int n = 0; n < N; ++n) { ENGINE_UNROLL for (int a = 0; a < A; ++a) sums[n][a] = _mm256_setzero_ps(); }
    const float* at = x;
    for (Index b = 0; b < whole; ++b, p += Reader::bytes, at += 32) {
      const Four weights = Reader::read(p);
      ENGINE_UNROLL for (int i = 0; i < 4; ++i) {
        ENGINE_UNROLL for (int n = 0; n < N; ++n) {
          sums[n][i % A] = _mm256_fmadd_ps(weights.v[i], _mm256_loadu_ps(at + n * x_stride + 8 * i), sums[n][i % A]);
        }
      }
    }
    ENGINE_UNROLL for (int n = 0; n < N; ++n) {
      __m256 sum = _mm256_add_ps(sums[n][0], sums[n][1]);
      if constexpr (A == 4) sum = _mm256_add_ps(sum, _mm256_add_ps(sums[n][2], sums[n][3]));
      float total = sum_of(sum);
      if constexpr (has_ends<Reader>) {
        for (Index k = 32 * whole; k < w.cols; ++k) {
          total += Reader::one(p + (k - 32 * whole) * Reader::bytes / 32) * x[n * x_stride + k];
        }
      }
      y[n * y_stride + r] = total;
    }
  }
}

template <class Reader>
ENGINE_AVX2 void dot_rows_as(const StoredMatrix& w, const float* x, Index x_stride, Index n, float* y, Index y_stride) {
  switch (n) {
    case 1: return dot_rows_of<Reader, 1>(w, x, x_stride, y, y_stride);
    case 2: return dot_rows_of<Reader, 2>(w, x, x_stride, y, y_stride);
    case 3: return dot_rows_of<Reader, 3>(w, x, x_stride, y, y_stride);
    default: return dot_rows_of<Reader, 4>(w, x, x_stride, y, y_stride);
  }
}

void dot_rows(const StoredMatrix& w, const float* x, Index x_stride, Index n, float* y, Index y_stride) {
  switch (w.type) {
    case TensorType::F32: return dot_rows_as<ReadF32>(w, x, x_stride, n, y, y_stride);
    case TensorType::F16: return dot_rows_as<ReadF16>(w, x, x_stride, n, y, y_stride);
    case TensorType::BF16: return dot_rows_as<ReadBF16>(w, x, x_stride, n, y, y_stride);
    case TensorType::Q8_0: return dot_rows_as<ReadQ8_0>(w, x, x_stride, n, y, y_stride);
    case TensorType::Q4_0: return dot_rows_as<ReadQ4_0>(w, x, x_stride, n, y, y_stride);
    case TensorType::Q4_1: return dot_rows_as<ReadQ4_1>(w, x, x_stride, n, y, y_stride);
    default: return portable_kernels().dot_rows(w, x, x_stride, n, y, y_stride);
  }
}

// A block of 16 columns stays in registers while the rows go by.
template <class Reader, int N>
ENGINE_AVX2 void add_rows_of(const StoredMatrix& w, const float* p, Index p_stride, float* out, Index out_stride) {
  constexpr Index bytes = Reader::bytes / 32;
  Index c = 0;
  for (; c + 16 <= w.cols; c += 16) {
    __m256 sums[count<N>][2];
    ENGINE_UNROLL for (int n = 0; n < N; ++n) {
      ENGINE_UNROLL for (int i = 0; i < 2; ++i) sums[n][i] = _mm256_loadu_ps(out + n * out_stride + c + 8 * i);
    }
    const std::byte* row = w.data + c * bytes;
    for (Index r = 0; r < w.rows; ++r, row += w.row_bytes) {
      const __m256 first = Reader::eight(row);
      const __m256 second = Reader::eight(row + 8 * bytes);
      ENGINE_UNROLL for (int n = 0; n < N; ++n) {
        const __m256 weight = _mm256_broadcast_ss(p + n * p_stride + r);
        sums[n][0] = _mm256_fmadd_ps(weight, first, sums[n][0]);
        sums[n][1] = _mm256_fmadd_ps(weight, second, sums[n][1]);
      }
    }
    ENGINE_UNROLL for (int n = 0; n < N; ++n) {
      ENGINE_UNROLL for (int i = 0; i < 2; ++i) _mm256_storeu_ps(out + n * out_stride + c + 8 * i, sums[n][i]);
    }
  }
  for (; c < w.cols; ++c) {
    for (Index r = 0; r < w.rows; ++r) {
      const float value = Reader::one(w.data + static_cast<std::size_t>(r) * w.row_bytes + c * bytes);
      for (int n = 0; n < N; ++n) out[n * out_stride + c] += p[n * p_stride + r] * value;
    }
  }
}

template <class Reader>
ENGINE_AVX2 void add_rows_as(const StoredMatrix& w, const float* p, Index p_stride, Index n, float* out, Index out_stride) {
  switch (n) {
    case 1: return add_rows_of<Reader, 1>(w, p, p_stride, out, out_stride);
    case 2: return add_rows_of<Reader, 2>(w, p, p_stride, out, out_stride);
    case 3: return add_rows_of<Reader, 3>(w, p, p_stride, out, out_stride);
    default: return add_rows_of<Reader, 4>(w, p, p_stride, out, out_stride);
  }
}

void add_rows(const StoredMatrix& w, const float* p, Index p_stride, Index n, float* out, Index out_stride) {
  switch (w.type) {
    case TensorType::F32: return add_rows_as<ReadF32>(w, p, p_stride, n, out, out_stride);
    case TensorType::F16: return add_rows_as<ReadF16>(w, p, p_stride, n, out, out_stride);
    case TensorType::BF16: return add_rows_as<ReadBF16>(w, p, p_stride, n, out, out_stride);
    default: return portable_kernels().add_rows(w, p, p_stride, n, out, out_stride);
  }
}

template <class Reader>
ENGINE_AVX2 void unpack_as(const std::byte* p, Index cols, float* out) {
  Index k = 0;
  for (; k + 32 <= cols; k += 32, p += Reader::bytes) {
    const Four w = Reader::read(p);
    ENGINE_UNROLL for (int i = 0; i < 4; ++i) _mm256_storeu_ps(out + k + 8 * i, w.v[i]);
  }
  if constexpr (has_ends<Reader>) {
    for (; k < cols; ++k, p += Reader::bytes / 32) out[k] = Reader::one(p);
  }
}

void unpack(TensorType type, const std::byte* row, Index cols, float* out) {
  switch (type) {
    case TensorType::F32: return unpack_as<ReadF32>(row, cols, out);
    case TensorType::F16: return unpack_as<ReadF16>(row, cols, out);
    case TensorType::BF16: return unpack_as<ReadBF16>(row, cols, out);
    case TensorType::Q8_0: return unpack_as<ReadQ8_0>(row, cols, out);
    case TensorType::Q4_0: return unpack_as<ReadQ4_0>(row, cols, out);
    case TensorType::Q4_1: return unpack_as<ReadQ4_1>(row, cols, out);
    default: return portable_kernels().unpack(type, row, cols, out);
  }
}

// R rows by 16 lanes in 2·R registers; six rows leave room for the two loads and the broadcast.
template <int R>
ENGINE_AVX2 void tile_rows(const StridedFloats& w, Index first_row, const float* x, float* c, TileOutput output) {
  __m256 sums[count<R>][2];
  float* to = c + first_row * tile_lanes;
  ENGINE_UNROLL for (int r = 0; r < R; ++r) {
    ENGINE_UNROLL for (int i = 0; i < 2; ++i) {
      sums[r][i] = output == TileOutput::add ? _mm256_loadu_ps(to + r * tile_lanes + 8 * i) : _mm256_setzero_ps();
    }
  }
  const float* column = w.data + first_row * w.row;
  for (Index k = 0; k < w.cols; ++k, column += w.col, x += tile_lanes) {
    const __m256 first = _mm256_loadu_ps(x);
    const __m256 second = _mm256_loadu_ps(x + 8);
    ENGINE_UNROLL for (int r = 0; r < R; ++r) {
      const __m256 weight = _mm256_broadcast_ss(column + r * w.row);
      sums[r][0] = _mm256_fmadd_ps(weight, first, sums[r][0]);
      sums[r][1] = _mm256_fmadd_ps(weight, second, sums[r][1]);
    }
  }
  ENGINE_UNROLL for (int r = 0; r < R; ++r) {
    ENGINE_UNROLL for (int i = 0; i < 2; ++i) _mm256_storeu_ps(to + r * tile_lanes + 8 * i, sums[r][i]);
  }
}

void tile(const StridedFloats& w, const float* x, float* c, TileOutput output) {
  Index r = 0;
  for (; r + 6 <= w.rows; r += 6) tile_rows<6>(w, r, x, c, output);
  switch (w.rows - r) {
    case 5: return tile_rows<5>(w, r, x, c, output);
    case 4: return tile_rows<4>(w, r, x, c, output);
    case 3: return tile_rows<3>(w, r, x, c, output);
    case 2: return tile_rows<2>(w, r, x, c, output);
    case 1: return tile_rows<1>(w, r, x, c, output);
    default: return;
  }
}

// exp for x <= 88.3, relative error below 2e-7; below -87.3, where floats become subnormal, 0.
ENGINE_AVX2_INLINE __m256 exp_of(__m256 x) {
  const __m256 smallest = _mm256_set1_ps(-87.3F);
  const __m256 keep = _mm256_cmp_ps(x, smallest, _CMP_NLT_UQ);  // keeps what is not a number
  x = _mm256_min_ps(_mm256_set1_ps(88.3F), _mm256_max_ps(smallest, x));
  // x = n·ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts keeps r exact to a float.
  const __m256 n =
      _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504F)), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145752F), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860677e-6F), r);
  __m256 e = _mm256_set1_ps(1.0F / 5040);
  e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(1.0F / 720));
  e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(1.0F / 120));
  e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(1.0F / 24));
  e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(1.0F / 6));
  e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(0.5F));
  e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(1.0F));
  e = _mm256_fmadd_ps(e, r, _mm256_set1_ps(1.0F));
  const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_and_ps(keep, _mm256_mul_ps(e, _mm256_castsi256_ps(exponent)));
}

ENGINE_AVX2 void softmax_lanes(float* s, Index n, SoftmaxLanes& lanes) {
  for (Index half = 0; half < tile_lanes; half += 8) {
    const __m256 before = _mm256_loadu_ps(lanes.maximum + half);
    __m256 maximum = before;
    for (Index k = 0; k < n; ++k) maximum = _mm256_max_ps(maximum, _mm256_loadu_ps(s + k * tile_lanes + half));
    const __m256 nothing = _mm256_set1_ps(-__builtin_inff());
    // −inf − −inf is not a number: lanes that have seen nothing subtract 0.
    const __m256 base = _mm256_andnot_ps(_mm256_cmp_ps(maximum, nothing, _CMP_EQ_OQ), maximum);
    const __m256 rescale = exp_of(_mm256_sub_ps(before, base));
    __m256 sum = _mm256_mul_ps(_mm256_loadu_ps(lanes.sum + half), rescale);
    for (Index k = 0; k < n; ++k) {
      const __m256 e = exp_of(_mm256_sub_ps(_mm256_loadu_ps(s + k * tile_lanes + half), base));
      _mm256_storeu_ps(s + k * tile_lanes + half, e);
      sum = _mm256_add_ps(sum, e);
    }
    _mm256_storeu_ps(lanes.maximum + half, maximum);
    _mm256_storeu_ps(lanes.sum + half, sum);
    _mm256_storeu_ps(lanes.rescale + half, rescale);
  }
}

ENGINE_AVX2 float exp_minus(float* x, Index n, float maximum) {
  const __m256 base = _mm256_set1_ps(maximum);
  __m256 sum = _mm256_setzero_ps();
  Index i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 e = exp_of(_mm256_sub_ps(_mm256_loadu_ps(x + i), base));
    _mm256_storeu_ps(x + i, e);
    sum = _mm256_add_ps(sum, e);
  }
  float total = sum_of(sum);
  for (; i < n; ++i) {
    x[i] = _mm256_cvtss_f32(exp_of(_mm256_set1_ps(x[i] - maximum)));
    total += x[i];
  }
  return total;
}

ENGINE_AVX2_INLINE __m256 silu_of(__m256 gate) {
  const __m256 e = exp_of(_mm256_sub_ps(_mm256_setzero_ps(), gate));
  return _mm256_div_ps(gate, _mm256_add_ps(_mm256_set1_ps(1.0F), e));
}

ENGINE_AVX2 void silu_multiply(float* gate, const float* up, Index n) {
  Index i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(gate + i, _mm256_mul_ps(silu_of(_mm256_loadu_ps(gate + i)), _mm256_loadu_ps(up + i)));
  }
  for (; i < n; ++i) gate[i] = _mm256_cvtss_f32(silu_of(_mm256_set1_ps(gate[i]))) * up[i];
}

bool processor_has_f16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1U << 29)) != 0;
}

}  // namespace

const Kernels* avx2_kernels() {
  static constexpr Kernels table{"avx2", dot_rows, add_rows, unpack, tile, softmax_lanes, exp_minus, silu_multiply};
  static const bool runs = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && processor_has_f16c();
  return runs ? &table : nullptr;
}

}  // namespace engine

#else

namespace engine {

const Kernels* avx2_kernels() { return nullptr; }

}  // namespace engine

#endif
