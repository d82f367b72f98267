// SPDX-License-Identifier: Apache-2.0
#include "matmul.hpp"

#include "quants.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <doctest/doctest.h>

using engine::Activations;
using engine::BlockScale;
using engine::Index;
using engine::Kernels;
using engine::Matmul;
using engine::RowMatrix;
using engine::Tensor;
using engine::TensorType;
using engine::WeightMatrix;

namespace {

constexpr TensorType every_type[] = {TensorType::F32,  TensorType::F16,  TensorType::BF16, TensorType::Q8_0, TensorType::Q4_0,
                                     TensorType::Q4_1, TensorType::Q5_0, TensorType::Q4_K, TensorType::Q6_K};

// A tensor of random bits, whose numbers are all finite and below about 4 in size.
struct RandomTensor {
  std::vector<std::byte> bytes;
  Tensor tensor;

  RandomTensor(TensorType type, Index rows, Index cols, unsigned seed) : tensor{"w", type, cols, rows, {}} {
    std::mt19937 random(seed);
    const engine::BlockLayout block = engine::block_layout(type);
    bytes.resize(tensor.row_bytes() * static_cast<std::size_t>(rows));
    for (std::byte& b : bytes) b = static_cast<std::byte>(random() & 0xFF);
    std::uniform_real_distribution<float> values(-2, 2);
    for (std::size_t at = 0; at < bytes.size(); at += block.bytes) fix(type, bytes.data() + at, values(random));
    tensor.data = bytes;
  }

 private:
  // The floating-point fields must be ordinary numbers: 2^-7 to 2^-4 as halves, whichever sign.
  static void fix(TensorType type, std::byte* block, float value) {
    const auto tame = [](std::byte* low) { low[1] = (low[1] & std::byte{0x83}) | std::byte{0x20}; };
    switch (type) {
      case TensorType::F32: std::memcpy(block, &value, 4); break;
      case TensorType::F16: block[1] = (block[1] & std::byte{0x83}) | std::byte{0x38}; break;
      case TensorType::BF16: block[1] = (block[1] & std::byte{0x80}) | std::byte{0x3F}; break;
      case TensorType::Q4_1:
      case TensorType::Q4_K: tame(block + 2); [[fallthrough]];
      case TensorType::Q8_0:
      case TensorType::Q4_0:
      case TensorType::Q5_0: tame(block); break;
      case TensorType::Q6_K: tame(block + 208); break;
    }
  }
};

RowMatrix random_rows(Index rows, Index cols, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> values;
  RowMatrix x(rows, cols);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = values(random);
  return x;
}

// Row r of the tensor as floats.
std::vector<float> row_of(const Tensor& tensor, Index r) {
  std::vector<float> row(static_cast<std::size_t>(tensor.cols));
  engine::dequantize_row(tensor.type, tensor.data.data() + static_cast<std::size_t>(r) * tensor.row_bytes(), row);
  return row;
}

// Largest error of y = x · Wᵀ against sums in double, as a share of the sum of magnitudes.
double product_error(const RowMatrix& x, const Tensor& tensor, const RowMatrix& y) {
  REQUIRE(y.rows() == x.rows());
  REQUIRE(y.cols() == tensor.rows);
  double worst = 0;
  for (Index r = 0; r < tensor.rows; ++r) {
    const std::vector<float> row = row_of(tensor, r);
    for (Index t = 0; t < x.rows(); ++t) {
      double sum = 0;
      double size = 0;
      for (Index k = 0; k < tensor.cols; ++k) {
        const double term = static_cast<double>(row[static_cast<std::size_t>(k)]) * static_cast<double>(x(t, k));
        sum += term;
        size += std::abs(term);
      }
      const double error = std::abs(static_cast<double>(y(t, r)) - sum) / (size + 1e-30);
      worst = std::isfinite(error) ? std::max(worst, error) : 1.0;
    }
  }
  return worst;
}

// A few float roundings of the sum of magnitudes.
void check_product(const RowMatrix& x, const Tensor& tensor, const RowMatrix& y) { CHECK(product_error(x, tensor, y) < 2e-6); }

bool has_blocks(TensorType type) { return engine::block_layout(type).elements > 1; }

// What eight bits leave of activations, in plain C++: blocks of 32, their largest magnitude is 127, ties to even.
RowMatrix rounded_activations(const RowMatrix& x) {
  RowMatrix rounded(x.rows(), x.cols());
  for (Index t = 0; t < x.rows(); ++t) {
    for (Index k = 0; k < x.cols(); k += 32) {
      const auto block = x.row(t).segment(k, 32);
      const double largest = static_cast<double>(block.cwiseAbs().maxCoeff());
      for (Index i = 0; i < 32; ++i) {
        const double q = std::nearbyint(static_cast<double>(block[i]) * 127 / largest);
        rounded(t, k + i) = static_cast<float>(q * largest / 127);
      }
    }
  }
  return rounded;
}

Index cols_for(TensorType type, Index about) {
  const auto block = static_cast<Index>(engine::block_layout(type).elements);
  return (about + block - 1) / block * block;
}

constexpr Index every_row_count[] = {1, 7, 16, 50, 101};
constexpr Index every_token_count[] = {1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 31, 40};

}  // namespace

TEST_CASE("weights_unpack_to_what_the_file_says") {
  for (const TensorType type : every_type) {
    CAPTURE(engine::name(type));
    const RandomTensor w(type, 37, cols_for(type, 70), 5);
    const WeightMatrix weights(w.tensor);
    CHECK(weights.rows() == 37);
    CHECK(weights.cols() == w.tensor.cols);
    CHECK(weights.n_panels() == 3);
    std::vector<float> row(static_cast<std::size_t>(w.tensor.cols));
    for (Index r = 0; r < 37; ++r) {
      weights.unpack_row(r, row);
      CHECK(row == row_of(w.tensor, r));
    }
  }
}

TEST_CASE("weights_packed_piece_by_piece_in_foreign_memory") {
  for (const TensorType type : every_type) {
    CAPTURE(engine::name(type));
    const RandomTensor w(type, 50, cols_for(type, 32), 6);
    const std::size_t bytes = WeightMatrix::memory_bytes(w.tensor);
    CHECK(bytes % 64 == 0);
    const engine::PanelMemory memory(2 * bytes);
    const WeightMatrix weights(w.tensor, memory.data() + bytes);
    for (const Index panel : {3, 0, 2, 1}) weights.pack(w.tensor, panel, 1);
    std::vector<float> row(static_cast<std::size_t>(w.tensor.cols));
    for (Index r = 0; r < 50; ++r) {
      weights.unpack_row(r, row);
      CHECK(row == row_of(w.tensor, r));
    }
    for (std::size_t i = 0; i < bytes; ++i) REQUIRE(memory.data()[i] == std::byte{0});  // nothing in front of it
  }
}

TEST_CASE("matmul_equals_the_dequantised_product_for_every_type_and_shape") {
  tinyllm::ThreadPool pool(2);
  for (const Kernels* kernels : engine::every_kernels()) {
    Matmul matmul(pool, Activations::f32, *kernels);
    RowMatrix y;
    for (const TensorType type : every_type) {
      for (const Index rows : every_row_count) {
        for (const Index cols : {1, 33, 96, 300}) {
          const RandomTensor w(type, rows, cols_for(type, cols), 7);
          const WeightMatrix weights(w.tensor);
          for (const Index tokens : every_token_count) {
            CAPTURE(kernels->name);
            CAPTURE(engine::name(type));
            CAPTURE(rows);
            CAPTURE(cols);
            CAPTURE(tokens);
            const RowMatrix x = random_rows(tokens, w.tensor.cols, 3);
            matmul.multiply(x, weights, y);
            check_product(x, w.tensor, y);
          }
        }
      }
    }
  }
}

TEST_CASE("matmul_with_rounded_activations_equals_the_product_of_what_they_are_rounded_to") {
  tinyllm::ThreadPool pool(2);
  for (const Kernels* kernels : engine::every_kernels()) {
    Matmul matmul(pool, Activations::q8, *kernels);
    Matmul exact(pool, Activations::f32, *kernels);
    RowMatrix y;
    RowMatrix expected;
    for (const TensorType type : every_type) {
      for (const Index rows : every_row_count) {
        for (const Index cols : {32, 96, 300}) {
          const RandomTensor w(type, rows, cols_for(type, cols), 7);
          const WeightMatrix weights(w.tensor);
          for (const Index tokens : every_token_count) {
            CAPTURE(kernels->name);
            CAPTURE(engine::name(type));
            CAPTURE(rows);
            CAPTURE(cols);
            CAPTURE(tokens);
            const RowMatrix x = random_rows(tokens, w.tensor.cols, 3);
            matmul.multiply(x, weights, y);
            if (has_blocks(type)) {
              CHECK(product_error(rounded_activations(x), w.tensor, y) < 4e-6);
              if (rows * tokens < 100) continue;
              exact.multiply(x, weights, expected);
              CHECK((y - expected).norm() < 2e-2F * expected.norm());
            } else {
              check_product(x, w.tensor, y);  // plain numbers meet exact activations
            }
          }
        }
      }
    }
  }
}

TEST_CASE("matmul_with_extreme_weights_and_activations_does_not_overflow") {
  tinyllm::ThreadPool pool(1);
  for (const Kernels* kernels : engine::every_kernels()) {
    CAPTURE(kernels->name);
    Matmul matmul(pool, Activations::q8, *kernels);
    RowMatrix y;
    for (const TensorType type : {TensorType::Q8_0, TensorType::Q4_0, TensorType::Q4_1, TensorType::Q5_0, TensorType::Q6_K}) {
      for (const int bits : {0x00, 0x7F, 0x80, 0xFF}) {
        RandomTensor w(type, 16, cols_for(type, 64), 1);
        const engine::BlockLayout block = engine::block_layout(type);
        const std::size_t head = type == TensorType::Q4_1 ? 4 : type == TensorType::Q6_K ? 0 : 2;
        const std::size_t end = type == TensorType::Q6_K ? 208 : block.bytes;
        for (std::size_t at = 0; at < w.bytes.size(); at += block.bytes) {
          for (std::size_t i = head; i < end; ++i) w.bytes[at + i] = static_cast<std::byte>(bits);
        }
        w.tensor.data = w.bytes;
        for (const float sign : {1.0F, -1.0F}) {
          const RowMatrix x = RowMatrix::Constant(3, w.tensor.cols, sign);
          matmul.multiply(x, WeightMatrix(w.tensor), y);
          CAPTURE(engine::name(type));
          CAPTURE(bits);
          check_product(x, w.tensor, y);
        }
      }
    }
  }
}

TEST_CASE("matmul_results_of_a_token_do_not_depend_on_the_others") {
  tinyllm::ThreadPool pool(2);
  for (const Kernels* kernels : engine::every_kernels()) {
    for (const Activations activations : {Activations::f32, Activations::q8}) {
      Matmul matmul(pool, activations, *kernels);
      for (const TensorType type : every_type) {
        CAPTURE(kernels->name);
        CAPTURE(engine::name(type));
        const RandomTensor w(type, 40, cols_for(type, 96), 2);
        const WeightMatrix weights(w.tensor);
        const RowMatrix x = random_rows(15, w.tensor.cols, 9);
        RowMatrix together;
        matmul.multiply(x, weights, together);
        for (Index t = 0; t < x.rows(); ++t) {
          RowMatrix alone;
          matmul.multiply(x.row(t), weights, alone);
          CHECK(alone == together.row(t));
        }
      }
    }
  }
}

TEST_CASE("matmul_several_products_in_one_step") {
  const RandomTensor a(TensorType::Q4_1, 50, 64, 1);
  const RandomTensor b(TensorType::F32, 9, 64, 2);
  const RandomTensor c(TensorType::F16, 130, 64, 3);
  const WeightMatrix wa(a.tensor);
  const WeightMatrix wb(b.tensor);
  const WeightMatrix wc(c.tensor);
  for (const Index n_threads : {1, 2, 3}) {
    tinyllm::ThreadPool pool(n_threads);
    for (const Activations activations : {Activations::f32, Activations::q8}) {
      Matmul matmul(pool, activations);
      for (const Index tokens : {1, 20}) {
        const RowMatrix x = random_rows(tokens, 64, 5);
        RowMatrix ya;
        RowMatrix yb;
        RowMatrix yc;
        const engine::Product products[] = {{&wa, &ya}, {&wb, &yb}, {&wc, &yc}};
        matmul.multiply(x, products);
        CHECK(product_error(activations == Activations::q8 ? rounded_activations(x) : x, a.tensor, ya) < 4e-6);
        check_product(x, b.tensor, yb);
        check_product(x, c.tensor, yc);
      }
    }
  }
}

TEST_CASE("matmul_adds_to_rows_and_gates") {
  const RandomTensor a(TensorType::Q8_0, 37, 64, 1);
  const RandomTensor b(TensorType::Q4_0, 37, 64, 2);
  const WeightMatrix gate_weights(a.tensor);
  const WeightMatrix up_weights(b.tensor);
  for (const Kernels* kernels : engine::every_kernels()) {
    CAPTURE(kernels->name);
    tinyllm::ThreadPool pool(2);
    Matmul matmul(pool, Activations::f32, *kernels);
    for (const Index tokens : {1, 6}) {
      const RowMatrix x = random_rows(tokens, 64, 5);
      RowMatrix gate;
      RowMatrix up;
      matmul.multiply(x, gate_weights, gate);
      matmul.multiply(x, up_weights, up);

      const RowMatrix before = random_rows(tokens + 3, 37, 8);
      RowMatrix sum = before;
      matmul.multiply_add(x, gate_weights, sum, 2);
      CHECK(sum.topRows(2) == before.topRows(2));
      CHECK(sum.bottomRows(1) == before.bottomRows(1));
      CHECK((sum - before).middleRows(2, tokens).isApprox(gate, 1e-5F));

      RowMatrix gated;
      RowMatrix scratch;
      matmul.multiply_gated(x, gate_weights, up_weights, gated, scratch);
      const RowMatrix expected = gate.array() / (1 + (-gate.array()).exp()) * up.array();
      CHECK(gated.isApprox(expected, 1e-5F));

      RowMatrix small(tokens + 1, 37);
      CHECK_THROWS_AS(matmul.multiply_add(x, gate_weights, small, 2), std::invalid_argument);
      CHECK_THROWS_AS(matmul.multiply_add(x, gate_weights, scratch, -1), std::invalid_argument);
    }
  }
}

TEST_CASE("matmul_refuses_shapes_that_do_not_fit") {
  const RandomTensor w(TensorType::Q8_0, 5, 64, 1);
  tinyllm::ThreadPool pool(1);
  Matmul matmul(pool);
  RowMatrix y;
  CHECK_THROWS_WITH_AS(matmul.multiply(RowMatrix::Zero(2, 32), WeightMatrix(w.tensor), y),
                       "product of [2, 32] activations with [5, 64] weights", std::invalid_argument);
  CHECK_THROWS_AS(WeightMatrix(Tensor{"w", static_cast<TensorType>(99), 32, 1, {}}), engine::FileError);
  matmul.multiply(RowMatrix(0, 64), WeightMatrix(w.tensor), y);
  CHECK(y.rows() == 0);
  CHECK(y.cols() == 5);
}

TEST_CASE("kernels_quantize_in_blocks_of_32") {
  for (const Kernels* kernels : engine::every_kernels()) {
    CAPTURE(kernels->name);
    RowMatrix x = random_rows(1, 128, 4);
    x.row(0).segment(32, 32).setZero();
    x.row(0).segment(64, 32) *= 1e-30F;
    x(0, 70) = 1e-29F;
    std::vector<std::int8_t> q(128);
    std::vector<BlockScale> scales(4);
    kernels->quantize(x.data(), 128, q.data(), scales.data());
    for (std::size_t b = 0; b < 4; ++b) {
      CAPTURE(b);
      const auto block = x.row(0).segment(static_cast<Index>(b) * 32, 32);
      const double scale = static_cast<double>(scales[b].scale);
      CHECK(scale == doctest::Approx(static_cast<double>(block.cwiseAbs().maxCoeff()) / 127).epsilon(1e-6).scale(1e-32));
      int sums[2] = {0, 0};
      for (std::size_t i = 0; i < 32; ++i) {
        const int value = q[32 * b + i];
        CHECK(std::abs(value) <= 127);
        CHECK(std::abs(static_cast<double>(block[static_cast<Index>(i)]) - scale * value) <= scale * 0.50001);
        sums[i / 16] += value;
      }
      CHECK(scales[b].offsets[0] == -128 * sums[0]);
      CHECK(scales[b].offsets[1] == -128 * sums[1]);
      CHECK(static_cast<double>(scales[b].sum) == doctest::Approx(scale * (sums[0] + sums[1])).epsilon(1e-6).scale(1e-32));
    }
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      for (const Index at : {0, 17, 31}) {
        RowMatrix spoiled = random_rows(1, 32, 4);
        spoiled(0, at) = bad;
        if (at > 4) spoiled(0, at - 4) = 1e20F;  // which a NaN may make it forget, so that 127 is exceeded
        kernels->quantize(spoiled.data(), 32, q.data(), scales.data());
        CHECK_FALSE(std::isfinite(scales[0].scale));  // so that what comes out is no number either
      }
    }
  }
}

TEST_CASE("kernels_come_with_the_best_attention_that_the_processor_runs") {
  using tinyllm::CpuLevel;
  for (const Kernels* kernels : engine::every_kernels()) {
    CHECK(std::string(kernels->name) == tinyllm::name(std::min(kernels->level, CpuLevel::avx512_vnni)));
    CHECK(tinyllm::runs(kernels->level));
  }
  // AVX-512 without integer dot products has no kernels of its own.
  const CpuLevel best = tinyllm::best_level();
  CHECK(engine::best_kernels().level == (best == CpuLevel::avx512 ? CpuLevel::avx2 : best));
}

TEST_CASE("kernels_normalize_rotate_and_silu_equal_plain_loops") {
  for (const Kernels* kernels : engine::every_kernels()) {
    CAPTURE(kernels->name);
    for (const Index n : {2, 8, 36, 70}) {
      CAPTURE(n);
      const RowMatrix x = random_rows(1, n, 3);
      const RowMatrix weight = random_rows(1, n, 4);
      RowMatrix out(1, n);
      kernels->normalize(x.data(), weight.data(), n, 1e-5F, out.data());
      const float root = std::sqrt(x.squaredNorm() / static_cast<float>(n) + 1e-5F);
      CHECK(out.isApprox(RowMatrix(x.cwiseProduct(weight) / root), 1e-6F));

      const RowMatrix c = random_rows(1, n, 5);
      const RowMatrix s = random_rows(1, n, 6);
      RowMatrix turned = x;
      kernels->rotate(turned.data(), c.data(), s.data(), n);
      for (Index i = 0; i < n; i += 2) {
        CHECK(turned(0, i) == doctest::Approx(x(0, i) * c(0, i) + x(0, i + 1) * s(0, i)));
        CHECK(turned(0, i + 1) == doctest::Approx(x(0, i + 1) * c(0, i + 1) + x(0, i) * s(0, i + 1)));
      }
    }
    for (float g = -120.0F; g <= 120.0F; g += 0.71F) {
      float gate[19];
      float up[19];
      for (int i = 0; i < 19; ++i) {
        gate[i] = g;
        up[i] = static_cast<float>(i) - 4;
      }
      kernels->silu_multiply(gate, up, 19);
      for (int i = 0; i < 19; ++i) {
        const double expected = static_cast<double>(g) / (1 + std::exp(-static_cast<double>(g))) * (i - 4);
        CHECK(static_cast<double>(gate[i]) == doctest::Approx(expected).epsilon(2e-6));
      }
    }
  }
}
