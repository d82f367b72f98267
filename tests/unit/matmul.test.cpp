// SPDX-License-Identifier: Apache-2.0
#include "matmul.hpp"

#include "quants.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <doctest/doctest.h>

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

std::vector<const Kernels*> every_kernel() {
  std::vector<const Kernels*> tables{&engine::portable_kernels()};
  if (engine::avx2_kernels() != nullptr) tables.push_back(engine::avx2_kernels());
  return tables;
}

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

// Compares with sums in double; the bound is a few float roundings of the sum of magnitudes.
void check_product(const RowMatrix& x, const Tensor& tensor, const RowMatrix& y) {
  REQUIRE(y.rows() == x.rows());
  REQUIRE(y.cols() == tensor.rows);
  std::vector<float> row(static_cast<std::size_t>(tensor.cols));
  double worst = 0;
  for (Index r = 0; r < tensor.rows; ++r) {
    engine::dequantize_row(tensor.type, tensor.data.data() + static_cast<std::size_t>(r) * tensor.row_bytes(), row);
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
  CHECK(worst < 2e-6);
}

Index cols_for(TensorType type, Index about) {
  const auto block = static_cast<Index>(engine::block_layout(type).elements);
  return (about + block - 1) / block * block;
}

}  // namespace

TEST_CASE("matmul_equals_the_dequantised_product_for_every_type_and_shape") {
  tinyllm::ThreadPool pool(2);
  for (const Kernels* kernels : every_kernel()) {
    Matmul matmul(pool, *kernels);
    RowMatrix y;
    for (const TensorType type : every_type) {
      for (const Index rows : {1, 7, 50, 101}) {
        for (const Index cols : {1, 33, 96, 300}) {
          const RandomTensor w(type, rows, cols_for(type, cols), 7);
          const WeightMatrix weights(w.tensor);
          for (const Index tokens : {1, 2, 3, 4, 5, 16, 37}) {
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

TEST_CASE("matmul_several_products_in_one_step") {
  const RandomTensor a(TensorType::Q4_1, 50, 64, 1);
  const RandomTensor b(TensorType::Q8_0, 9, 64, 2);
  const RandomTensor c(TensorType::F16, 130, 64, 3);
  const WeightMatrix wa(a.tensor);
  const WeightMatrix wb(b.tensor);
  const WeightMatrix wc(c.tensor);
  for (const Index n_threads : {1, 2, 3}) {
    tinyllm::ThreadPool pool(n_threads);
    Matmul matmul(pool);
    for (const Index tokens : {1, 20}) {
      const RowMatrix x = random_rows(tokens, 64, 5);
      RowMatrix ya;
      RowMatrix yb;
      RowMatrix yc;
      const engine::Product products[] = {{&wa, &ya}, {&wb, &yb}, {&wc, &yc}};
      matmul.multiply(x, products);
      check_product(x, a.tensor, ya);
      check_product(x, b.tensor, yb);
      check_product(x, c.tensor, yc);
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

TEST_CASE("kernels_add_rows_and_strided_tiles_equal_plain_loops") {
  for (const Kernels* kernels : every_kernel()) {
    CAPTURE(kernels->name);
    for (const TensorType type : {TensorType::F32, TensorType::F16, TensorType::BF16}) {
      for (const Index cols : {3, 16, 72}) {
        const RandomTensor v(type, 11, cols, 4);
        const engine::StoredMatrix stored{type, v.bytes.data(), v.tensor.row_bytes(), 11, cols};
        RowMatrix rows(11, cols);
        for (Index r = 0; r < 11; ++r) {
          kernels->unpack(type, v.bytes.data() + static_cast<std::size_t>(r) * stored.row_bytes, cols, rows.data() + r * cols);
        }
        for (const Index n : {1, 2, 3, 4}) {
          const RowMatrix p = random_rows(n, 20, 8);  // wider than the rows, so that the stride matters
          RowMatrix out = random_rows(n, cols + 5, 9);
          RowMatrix expected = out;
          expected.leftCols(cols) += p.leftCols(11) * rows;
          kernels->add_rows(stored, p.data(), 20, n, out.data(), cols + 5);
          CHECK((out - expected).cwiseAbs().maxCoeff() < 1e-4F);
        }
        const RowMatrix x = random_rows(11, engine::tile_lanes, 2);  // columns of `rows` as the rows of the tile
        RowMatrix c = random_rows(cols, engine::tile_lanes, 6);
        const RowMatrix before = c;
        kernels->tile({rows.data(), 1, cols, cols, 11}, x.data(), c.data(), engine::TileOutput::add);
        CHECK((c - before - rows.transpose() * x).cwiseAbs().maxCoeff() < 1e-4F);
        kernels->tile({rows.data(), 1, cols, cols, 11}, x.data(), c.data(), engine::TileOutput::overwrite);
        CHECK((c - rows.transpose() * x).cwiseAbs().maxCoeff() < 1e-4F);
      }
    }
  }
}

TEST_CASE("kernels_exp_and_silu_equal_the_standard_library") {
  for (const Kernels* kernels : every_kernel()) {
    CAPTURE(kernels->name);
    std::vector<float> x;
    for (float v = -87.0F; v <= 0.0F; v += 0.037F) x.push_back(v);
    std::vector<float> e = x;
    const float sum = kernels->exp_minus(e.data(), static_cast<Index>(e.size()), 0.0F);
    double expected_sum = 0;
    double worst = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double expected = std::exp(static_cast<double>(x[i]));
      expected_sum += expected;
      worst = std::max(worst, std::abs(static_cast<double>(e[i]) / expected - 1));
    }
    CHECK(worst < 3e-7);
    CHECK(static_cast<double>(sum) == doctest::Approx(expected_sum).epsilon(1e-5));

    std::vector<float> ends{-std::numeric_limits<float>::infinity(), -1e5F, 0.0F};
    kernels->exp_minus(ends.data(), 3, 0.0F);
    CHECK(ends == std::vector<float>{0.0F, 0.0F, 1.0F});

    for (float g = -120.0F; g <= 120.0F; g += 0.71F) {
      float gate[9];
      float up[9];
      for (int i = 0; i < 9; ++i) {
        gate[i] = g;
        up[i] = static_cast<float>(i) - 4;
      }
      kernels->silu_multiply(gate, up, 9);
      for (int i = 0; i < 9; ++i) {
        const double expected = static_cast<double>(g) / (1 + std::exp(-static_cast<double>(g))) * (i - 4);
        CHECK(static_cast<double>(gate[i]) == doctest::Approx(expected).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("kernels_softmax_lanes_equal_one_softmax") {
  constexpr float nothing = -std::numeric_limits<float>::infinity();
  for (const Kernels* kernels : every_kernel()) {
    CAPTURE(kernels->name);
    RowMatrix s = random_rows(20, engine::tile_lanes, 3) * 30;
    s.row(5).setConstant(nothing);
    s.col(3).topRows(12).setConstant(nothing);  // sees something only in the second step
    s.col(4).setConstant(nothing);              // never sees anything
    s.col(6).setConstant(-1e5F);
    RowMatrix e = s;
    engine::SoftmaxLanes lanes;
    for (Index l = 0; l < engine::tile_lanes; ++l) {
      lanes.maximum[l] = nothing;
      lanes.sum[l] = 0;
    }
    kernels->softmax_lanes(e.data(), 12, lanes);
    kernels->softmax_lanes(e.data() + 12 * engine::tile_lanes, 8, lanes);
    for (Index l = 0; l < engine::tile_lanes; ++l) {
      CAPTURE(l);
      if (l == 4) {
        CHECK(lanes.sum[l] == 0.0F);
        CHECK(e.col(l).isZero(0));
        continue;
      }
      const double maximum = static_cast<double>(s.col(l).maxCoeff());
      double sum = 0;
      for (Index k = 0; k < 20; ++k) sum += std::exp(static_cast<double>(s(k, l)) - maximum);
      CHECK(static_cast<double>(lanes.maximum[l]) == maximum);
      CHECK(static_cast<double>(lanes.sum[l]) == doctest::Approx(sum).epsilon(1e-5));
      const double rescale = static_cast<double>(lanes.rescale[l]);
      CHECK(static_cast<double>(e(0, l)) * rescale ==
            doctest::Approx(std::exp(static_cast<double>(s(0, l)) - maximum)).epsilon(1e-5));
    }
  }
}
