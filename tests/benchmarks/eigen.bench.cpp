// SPDX-License-Identifier: Apache-2.0
// The same attention as one writes it with Eigen alone, for comparison, on one thread: compiled as the rest is, and, as another
// program, for this processor.
#include "filled_cache.hpp"
#include "suite.hpp"

#include <cmath>
#include <limits>
#include <string>

namespace {

using namespace bench;

#ifdef EIGEN_NATIVE
constexpr const char* flags = "native";
#else
constexpr const char* flags = "none";
#endif

void softmax(RowMatrix& scores) {
  scores.colwise() -= scores.rowwise().maxCoeff().eval();
  scores = scores.array().exp();
  scores.array().colwise() /= scores.rowwise().sum().eval().array();
}

// A kv head at a time with all its queries, the stored matrix cast where it is not float.
template <class Dtype>
void attend_to_all(const tinyllm::KVView<Dtype>& view, const RowMatrix& q, RowMatrix& out) {
  const Index d = view.d_head();
  const Index group = q.cols() / (view.n_heads() * d);
  for (Index h = 0; h < view.n_heads(); ++h) {
    const Eigen::Map<const RowMatrix> queries(q.data() + h * group * d, group, d);
    Eigen::Map<RowMatrix> results(out.data() + h * group * d, group, d);
    RowMatrix scores = queries * view.keys(0, h).template cast<float>().transpose() / std::sqrt(static_cast<float>(d));
    softmax(scores);
    results.noalias() = scores * view.values(0, h).template cast<float>();
  }
}

// A query head at a time: all scores, then those of later positions struck out.
template <class Dtype>
void attend_causally(const tinyllm::KVView<Dtype>& view, const RowMatrix& q, RowMatrix& out) {
  const Index d = view.d_head();
  const Index group = q.cols() / (view.n_heads() * d);
  for (Index h = 0; h < view.n_heads(); ++h) {
    const RowMatrix keys = view.keys(0, h).template cast<float>();
    const RowMatrix values = view.values(0, h).template cast<float>();
    for (Index i = h * group; i < (h + 1) * group; ++i) {
      RowMatrix scores = q.middleCols(i * d, d) * keys.transpose() / std::sqrt(static_cast<float>(d));
      scores.triangularView<Eigen::StrictlyUpper>().setConstant(-std::numeric_limits<float>::infinity());
      softmax(scores);
      out.middleCols(i * d, d).noalias() = scores * values;
    }
  }
}

template <class Dtype>
void decode(benchmark::State& state, const Shape& shape, Index s) {
  const FilledCache<Dtype>& cache = filled_cache<Dtype>(shape, s);
  const RowMatrix q = RowMatrix::Random(1, shape.query_width());
  RowMatrix out(q.rows(), q.cols());
  Best best;
  Index piece = 0;
  for (auto _ : state) {
    state.SetIterationTime(
        best.take([&] { cache.for_each_layer(piece, [&](const auto& view) { attend_to_all(view, q, out); }); }));
    ++piece;
  }
  state.counters["GB/s"] = cache.bytes() / best.seconds() / 1e9;
  state.counters["positions/s"] = cache.positions() / best.seconds();
}

template <class Dtype>
void prefill(benchmark::State& state, const Shape& shape, Index s) {
  const FilledCache<Dtype> cache(shape, s, 1, 1);
  const RowMatrix q = RowMatrix::Random(s, shape.query_width());
  RowMatrix out(q.rows(), q.cols());
  Best best;
  for (auto _ : state) state.SetIterationTime(best.take([&] { attend_causally(cache.view(0), q, out); }));
  const double pairs = static_cast<double>(s) * static_cast<double>(s + 1) / 2 * static_cast<double>(shape.n_heads);
  state.counters["GFLOP/s"] = 4 * pairs * static_cast<double>(shape.d_head) / best.seconds() / 1e9;
}

template <class Dtype>
void add_benchmarks() {
  const auto add = [](const char* what, const Shape& shape, Index s, auto function) {
    const std::string name = std::string(what) + "/shape:" + shape.name + "/type:" + type_name<Dtype>() +
                             "/s:" + std::to_string(s) + "/flags:" + flags;
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { function(state, shape, s); })
        ->UseManualTime()
        ->Iterations(20)
        ->Unit(benchmark::kMillisecond);
  };
  for (const Shape& shape : shapes) {
    add("eigen_decode", shape, 8192, decode<Dtype>);
    add("eigen_prefill", shape, 512, prefill<Dtype>);
  }
}

}  // namespace

int main(int argc, char** argv) {
  for_each_type<float, Eigen::half, Eigen::bfloat16>([]<class Dtype>(Dtype*) { add_benchmarks<Dtype>(); });
  return run_suite(argc, argv);
}
