// SPDX-License-Identifier: Apache-2.0
#include "matmul.hpp"

#include "quants.hpp"

#include <algorithm>
#include <atomic>

namespace engine {
namespace {

// Up to this many tokens, weights are converted in registers; beyond it, unpacking a panel once costs less.
constexpr Index most_row_tokens = max_dot_rows;

// Rows of one unpacked panel: a multiple of the six rows of a register tile, small enough for the second-level cache.
constexpr Index panel_rows = 48;

// Hands out runs of rows of several matrices to whoever comes next, so that a slow thread delays nobody.
class RowQueue {
 public:
  RowQueue(std::span<const Product> products, Index run) : products_(products), run_(run) {}

  struct Run {
    const Product* product;  // null: nothing is left
    Index first;
    Index n;
  };

  Run next() {
    Index at = next_.fetch_add(1, std::memory_order_relaxed);
    for (const Product& product : products_) {
      const Index rows = product.weights->rows();
      const Index runs = (rows + run_ - 1) / run_;
      if (at < runs) return {&product, at * run_, std::min(run_, rows - at * run_)};
      at -= runs;
    }
    return {nullptr, 0, 0};
  }

 private:
  std::span<const Product> products_;
  Index run_;
  std::atomic<Index> next_{0};
};

Index tiles_of(Index tokens) { return (tokens + tile_lanes - 1) / tile_lanes; }

void grow(std::vector<float>& scratch, Index size) {
  if (static_cast<Index>(scratch.size()) < size) scratch.resize(static_cast<std::size_t>(size));
}

}  // namespace

WeightMatrix::WeightMatrix(const Tensor& tensor)
    : stored_{tensor.type, tensor.data.data(), tensor.row_bytes(), tensor.rows, tensor.cols} {
  block_reader(tensor.type);  // refuses what the kernels cannot read
}

StoredMatrix WeightMatrix::stored_rows(Index first, Index n) const {
  StoredMatrix part = stored_;
  part.data += static_cast<std::size_t>(first) * part.row_bytes;
  part.rows = n;
  return part;
}

void WeightMatrix::unpack_row(Index row, std::span<float> out) const {
  dequantize_row(stored_.type, stored_rows(row, 1).data, out);
}

Matmul::Matmul(tinyllm::ThreadPool& pool, const Kernels& kernels) : pool_(pool), kernels_(kernels) {}

void Matmul::multiply(const RowMatrix& x, std::span<const Product> products) {
  for (const Product& product : products) {
    if (product.weights->cols() != x.cols()) {
      throw std::invalid_argument(tinyllm::detail::message("product of [", x.rows(), ", ", x.cols(), "] activations with [",
                                                           product.weights->rows(), ", ", product.weights->cols(),
                                                           "] weights"));
    }
    product.out->resize(x.rows(), product.weights->rows());
  }
  if (x.rows() == 0) return;
  if (x.rows() <= most_row_tokens) {
    multiply_rows(x, products);
  } else {
    multiply_tiles(x, products);
  }
}

void Matmul::multiply_rows(const RowMatrix& x, std::span<const Product> products) {
  Index rows = 0;
  for (const Product& product : products) rows += product.weights->rows();
  const Index threads = pool_.concurrency();
  const Index run = threads == 1 ? rows : std::max<Index>(8, rows / (8 * threads));
  RowQueue queue(products, std::max<Index>(run, 1));
  pool_.run(threads, [&](Index) {
    for (RowQueue::Run part = queue.next(); part.product != nullptr; part = queue.next()) {
      RowMatrix& y = *part.product->out;
      kernels_.dot_rows(part.product->weights->stored_rows(part.first, part.n), x.data(), x.cols(), x.rows(),
                        y.data() + part.first, y.cols());
    }
  });
}

void Matmul::multiply_tiles(const RowMatrix& x, std::span<const Product> products) {
  pack(x);
  const Index threads = pool_.concurrency();
  const Index scratch_size = panel_rows * (x.cols() + tile_lanes);
  grow(scratch_, threads * scratch_size);
  RowQueue queue(products, panel_rows);
  pool_.run(threads, [&](Index slot) {
    float* scratch = scratch_.data() + slot * scratch_size;
    for (RowQueue::Run part = queue.next(); part.product != nullptr; part = queue.next()) {
      multiply_panel(*part.product->weights, part.first, part.n, *part.product->out, scratch);
    }
  });
}

void Matmul::pack(const RowMatrix& x) {
  const Index tiles = tiles_of(x.rows());
  const Index cols = x.cols();
  grow(packed_, tiles * cols * tile_lanes);
  pool_.run(tiles, [&](Index tile) {
    float* to = packed_.data() + tile * cols * tile_lanes;
    const Index first = tile * tile_lanes;
    for (Index lane = 0; lane < tile_lanes; ++lane) {
      const bool real = first + lane < x.rows();
      const float* from = x.data() + (real ? first + lane : 0) * cols;
      for (Index k = 0; k < cols; ++k) to[k * tile_lanes + lane] = real ? from[k] : 0.0F;
    }
  });
}

void Matmul::multiply_panel(const WeightMatrix& weights, Index first, Index n, RowMatrix& y, float* scratch) const {
  const Index cols = weights.cols();
  float* panel = scratch;                       // [n, cols]
  float* result = scratch + panel_rows * cols;  // [n, tile_lanes]
  const StoredMatrix rows = weights.stored_rows(first, n);
  for (Index r = 0; r < n; ++r) {
    kernels_.unpack(rows.type, rows.data + static_cast<std::size_t>(r) * rows.row_bytes, cols, panel + r * cols);
  }
  const StridedFloats unpacked{panel, cols, 1, n, cols};
  for (Index tile = 0; tile < tiles_of(y.rows()); ++tile) {
    kernels_.tile(unpacked, packed_.data() + tile * cols * tile_lanes, result, TileOutput::overwrite);
    const Index tokens = std::min(tile_lanes, y.rows() - tile * tile_lanes);
    for (Index t = 0; t < tokens; ++t) {
      float* to = y.data() + (tile * tile_lanes + t) * y.cols() + first;
      for (Index r = 0; r < n; ++r) to[r] = result[r * tile_lanes + t];
    }
  }
}

}  // namespace engine
