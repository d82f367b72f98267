// SPDX-License-Identifier: Apache-2.0
#include "matmul.hpp"

#include <tinyllm/core/error.hpp>

#include <algorithm>
#include <atomic>
#include <stdexcept>

namespace engine {
namespace {

// Rows that one task quantises.
constexpr Index rows_per_task = 16;

template <class T>
void grow(std::vector<T>& scratch, Index size) {
  if (static_cast<Index>(scratch.size()) < size) scratch.resize(static_cast<std::size_t>(size));
}

}  // namespace

Matmul::Matmul(tinyllm::ThreadPool& pool, Activations activations, const Kernels& kernels)
    : pool_(pool), activations_(activations), kernels_(kernels) {}

void Matmul::check(const RowMatrix& x, const WeightMatrix& weights) const {
  if (weights.cols() == x.cols()) return;
  throw std::invalid_argument(tinyllm::detail::message("product of [", x.rows(), ", ", x.cols(), "] activations with [",
                                                       weights.rows(), ", ", weights.cols(), "] weights"));
}

bool Matmul::uses_quantized(const WeightMatrix& weights) const {
  return activations_ == Activations::q8 && is_quantized(weights.format());
}

void Matmul::quantize(const RowMatrix& x) {
  const Index cols = x.cols();
  grow(q_, x.size());
  grow(scales_, x.size() / 32);
  pool_.run((x.rows() + rows_per_task - 1) / rows_per_task, [&](Index task) {
    const Index end = std::min(x.rows(), (task + 1) * rows_per_task);
    for (Index row = task * rows_per_task; row < end; ++row) {
      kernels_.quantize(x.data() + row * cols, cols, q_.data() + row * cols, scales_.data() + row * (cols / 32));
    }
  });
}

// Calls f(first, n) for runs of panels that together are all of them. Most are dealt out beforehand, in one long run a thread;
// the rest goes to whoever comes first, in runs that get shorter, so that no thread waits long for a slow one.
template <class F>
void Matmul::share(Index n_panels, Index least, F f) const {
  const Index threads = pool_.concurrency();
  const Index dealt = n_panels * 5 / 8 / threads;
  std::atomic<Index> next{dealt * threads};
  pool_.run(std::min(threads, n_panels), [&](Index thread) {
    if (dealt > 0) f(thread * dealt, dealt);
    Index first = next.load(std::memory_order_relaxed);
    while (first < n_panels) {
      const Index left = n_panels - first;
      const Index n = std::min(std::max(left / (2 * threads), least), left);
      if (!next.compare_exchange_weak(first, first + n, std::memory_order_relaxed)) continue;
      f(first, n);
      first = next.load(std::memory_order_relaxed);
    }
  });
}

// Panels that are worth the claiming: cores hand a counter to each other in 100 ns.
Index Matmul::least_panels(const RowMatrix& x, const WeightMatrix& weights) const {
  constexpr Index worthwhile = 1 << 15;  // multiplications
  return std::max<Index>(worthwhile / (panel_rows * weights.cols() * x.rows()), 1);
}

void Matmul::multiply_panels(const RowMatrix& x, const WeightMatrix& weights, Index first, Index n, float* y, Index stride,
                             Store store) const {
  const ProductRows target{y + first * panel_rows, stride, store};
  if (uses_quantized(weights)) {
    kernels_.multiply_quantized(weights.panels(first, n), {q_.data(), scales_.data(), x.rows()}, target);
  } else {
    kernels_.multiply(weights.panels(first, n), {x.data(), x.cols(), x.rows()}, target);
  }
}

void Matmul::multiply(const RowMatrix& x, std::span<const Product> products) {
  Index n_panels = 0;
  bool quantized = false;
  for (const Product& product : products) {
    check(x, *product.weights);
    n_panels += product.weights->n_panels();
    quantized = quantized || uses_quantized(*product.weights);
  }
  for (const Product& product : products) product.out->resize(x.rows(), product.weights->rows());
  if (x.rows() == 0 || products.empty()) return;
  if (quantized) quantize(x);
  share(n_panels, least_panels(x, *products.front().weights), [&](Index first, Index n) {
    for (const Product& product : products) {
      const Index panels = product.weights->n_panels();
      const Index end = std::min(panels, first + n);
      if (first < end) {
        RowMatrix& y = *product.out;
        multiply_panels(x, *product.weights, first, end - first, y.data(), y.cols(), Store::overwrite);
      }
      // What is left of the run begins at the next product's first panel.
      n = std::min(n, first + n - panels);
      first = std::max<Index>(first - panels, 0);
      if (n <= 0) return;
    }
  });
}

void Matmul::multiply_add(const RowMatrix& x, const WeightMatrix& weights, RowMatrix& y, Index first_row) {
  check(x, weights);
  if (y.cols() != weights.rows() || first_row < 0 || y.rows() - first_row < x.rows()) {
    throw std::invalid_argument(tinyllm::detail::message("product of [", x.rows(), ", ", weights.rows(), "] added to [",
                                                         y.rows(), ", ", y.cols(), "] from row ", first_row));
  }
  if (x.rows() == 0) return;
  if (uses_quantized(weights)) quantize(x);
  float* const to = y.data() + first_row * y.cols();
  share(weights.n_panels(), least_panels(x, weights),
        [&](Index first, Index n) { multiply_panels(x, weights, first, n, to, y.cols(), Store::add); });
}

void Matmul::multiply_gated(const RowMatrix& x, const WeightMatrix& gate_weights, const WeightMatrix& up_weights,
                            RowMatrix& gate, RowMatrix& up) {
  check(x, gate_weights);
  check(x, up_weights);
  if (gate_weights.rows() != up_weights.rows()) {
    throw std::invalid_argument(
        tinyllm::detail::message("gated product of ", gate_weights.rows(), " and ", up_weights.rows(), " rows"));
  }
  const Index cols = gate_weights.rows();
  gate.resize(x.rows(), cols);
  up.resize(x.rows(), cols);
  if (x.rows() == 0) return;
  if (uses_quantized(gate_weights) || uses_quantized(up_weights)) quantize(x);
  share(gate_weights.n_panels(), least_panels(x, gate_weights), [&](Index first, Index n) {
    multiply_panels(x, gate_weights, first, n, gate.data(), cols, Store::overwrite);
    multiply_panels(x, up_weights, first, n, up.data(), cols, Store::overwrite);
    const Index begin = first * panel_rows;
    const Index width = std::min(cols, begin + n * panel_rows) - begin;
    for (Index t = 0; t < x.rows(); ++t) {
      kernels_.silu_multiply(gate.data() + t * cols + begin, up.data() + t * cols + begin, width);
    }
  });
}

}  // namespace engine
