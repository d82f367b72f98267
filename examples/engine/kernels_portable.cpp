// SPDX-License-Identifier: Apache-2.0
#include "kernels.hpp"
#include "quants.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace engine {
namespace {

// Numbers are unpacked this many at a time, into a buffer that stays in the first-level cache.
constexpr Index buffer_values = 256;
// Sums run in eight lanes: a compiler can keep them in vectors, and rounding errors stay small.
constexpr Index sum_lanes = 8;

// Reads runs of numbers of one format.
class Reader {
 public:
  explicit Reader(TensorType type) : read_(block_reader(type)), block_(block_layout(type)) {}

  // Pre: first and n are whole blocks.
  void operator()(const std::byte* row, Index first, Index n, float* out) const {
    read_(row + static_cast<std::size_t>(first) / block_.elements * block_.bytes, static_cast<std::size_t>(n) / block_.elements,
          out);
  }

 private:
  BlockReader read_;
  BlockLayout block_;
};

float dot(const float* a, const float* b, Index n, std::array<float, sum_lanes>& lanes) {
  Index k = 0;
  for (; k + sum_lanes <= n; k += sum_lanes) {
    for (Index l = 0; l < sum_lanes; ++l) lanes[static_cast<std::size_t>(l)] += a[k + l] * b[k + l];
  }
  float rest = 0;
  for (; k < n; ++k) rest += a[k] * b[k];
  return rest;
}

void dot_rows(const StoredMatrix& w, const float* x, Index x_stride, Index n, float* y, Index y_stride) {
  const Reader read(w.type);
  std::array<float, buffer_values> buffer;
  for (Index r = 0; r < w.rows; ++r) {
    const std::byte* row = w.data + static_cast<std::size_t>(r) * w.row_bytes;
    std::array<std::array<float, sum_lanes>, max_dot_rows> sums{};
    std::array<float, max_dot_rows> rests{};
    for (Index k = 0; k < w.cols; k += buffer_values) {
      const Index count = std::min(buffer_values, w.cols - k);
      read(row, k, count, buffer.data());
      for (Index i = 0; i < n; ++i) {
        const auto at = static_cast<std::size_t>(i);
        rests[at] += dot(buffer.data(), x + i * x_stride + k, count, sums[at]);
      }
    }
    for (Index i = 0; i < n; ++i) {
      const auto at = static_cast<std::size_t>(i);
      float total = rests[at];
      for (const float lane : sums[at]) total += lane;
      y[i * y_stride + r] = total;
    }
  }
}

void add_rows(const StoredMatrix& w, const float* p, Index p_stride, Index n, float* out, Index out_stride) {
  const Reader read(w.type);
  std::array<float, buffer_values> buffer;
  for (Index r = 0; r < w.rows; ++r) {
    const std::byte* row = w.data + static_cast<std::size_t>(r) * w.row_bytes;
    for (Index k = 0; k < w.cols; k += buffer_values) {
      const Index count = std::min(buffer_values, w.cols - k);
      read(row, k, count, buffer.data());
      for (Index i = 0; i < n; ++i) {
        const float weight = p[i * p_stride + r];
        float* to = out + i * out_stride + k;
        for (Index c = 0; c < count; ++c) to[c] += weight * buffer[static_cast<std::size_t>(c)];
      }
    }
  }
}

void unpack(TensorType type, const std::byte* row, Index cols, float* out) {
  const Reader read(type);
  read(row, 0, cols, out);
}

void tile(const StridedFloats& w, const float* x, float* c, TileOutput output) {
  for (Index r = 0; r < w.rows; ++r) {
    std::array<float, tile_lanes> sums{};
    for (Index k = 0; k < w.cols; ++k) {
      const float weight = w.data[r * w.row + k * w.col];
      for (Index l = 0; l < tile_lanes; ++l) sums[static_cast<std::size_t>(l)] += weight * x[k * tile_lanes + l];
    }
    float* to = c + r * tile_lanes;
    for (Index l = 0; l < tile_lanes; ++l) {
      to[l] = (output == TileOutput::add ? to[l] : 0.0F) + sums[static_cast<std::size_t>(l)];
    }
  }
}

void softmax_lanes(float* s, Index n, SoftmaxLanes& lanes) {
  constexpr float nothing = -std::numeric_limits<float>::infinity();
  for (Index l = 0; l < tile_lanes; ++l) {
    float maximum = lanes.maximum[l];
    for (Index k = 0; k < n; ++k) maximum = std::max(maximum, s[k * tile_lanes + l]);
    const float base = maximum == nothing ? 0.0F : maximum;  // −inf − −inf is not a number
    lanes.rescale[l] = std::exp(lanes.maximum[l] - base);
    float sum = 0;
    for (Index k = 0; k < n; ++k) {
      float& score = s[k * tile_lanes + l];
      score = std::exp(score - base);
      sum += score;
    }
    lanes.maximum[l] = maximum;
    lanes.sum[l] = lanes.sum[l] * lanes.rescale[l] + sum;
  }
}

float exp_minus(float* x, Index n, float maximum) {
  float sum = 0;
  for (Index i = 0; i < n; ++i) {
    x[i] = std::exp(x[i] - maximum);
    sum += x[i];
  }
  return sum;
}

void silu_multiply(float* gate, const float* up, Index n) {
  for (Index i = 0; i < n; ++i) gate[i] = gate[i] / (1.0F + std::exp(-gate[i])) * up[i];
}

}  // namespace

const Kernels& portable_kernels() {
  static constexpr Kernels table{"portable", dot_rows, add_rows, unpack, tile, softmax_lanes, exp_minus, silu_multiply};
  return table;
}

const Kernels& best_kernels() {
  static const Kernels* const best = avx2_kernels() != nullptr ? avx2_kernels() : &portable_kernels();
  return *best;
}

}  // namespace engine
