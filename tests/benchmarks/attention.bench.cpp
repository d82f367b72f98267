// SPDX-License-Identifier: Apache-2.0
// How fast one decode step's attention reads keys and values, beside how fast this machine reads memory in the same run, and
// how fast a prompt's attention computes.
//
// `decode`: reading and attending take turns on the same memory, piece by piece, and the best of each counts. `share` is of
// the fastest way of reading, `in_order_GB/s` what is read from beginning to end. `prefill`: a product and a
// sum for each number of each key and each value that a query sees.
#include "filled_cache.hpp"
#include "suite.hpp"

#include <tinyllm/attention/attend.hpp>

#include <string>
#include <vector>

namespace {

using namespace bench;
using tinyllm::AttendWorkspace;
using tinyllm::Exactness;

// Levels that differ for a type.
template <class Dtype>
std::vector<CpuLevel> levels_of() {
  if constexpr (std::same_as<Dtype, std::int8_t>) return runnable({CpuLevel::portable, CpuLevel::avx2, CpuLevel::avx512_vnni});
  if constexpr (std::same_as<Dtype, Eigen::bfloat16>) {
    return runnable({CpuLevel::portable, CpuLevel::avx2, CpuLevel::avx512, CpuLevel::avx512_bf16});
  }
  return runnable({CpuLevel::portable, CpuLevel::avx2, CpuLevel::avx512});
}

template <class Dtype>
void decode(benchmark::State& state, const Shape& shape, Index s, Index threads, CpuLevel level) {
  const FilledCache<Dtype>& cache = filled_cache<Dtype>(shape, s);
  const RowMatrix q = RowMatrix::Random(1, shape.query_width());
  RowMatrix out(q.rows(), q.cols());
  AttendWorkspace workspace;
  tinyllm::ThreadPool pool(threads);
  Best in_order;
  Best otherwise;
  Best attending;
  const Index n = cache.n_pieces();
  for (auto _ : state) {
    double seconds = 0;
    for (Index piece = 0; piece < n; ++piece) {  // none that was touched lately
      in_order.take([&] { cache.read(piece, pool, Reading::in_order); });
      otherwise.take([&] { cache.read(piece + n / 4, pool, Reading::ahead); });
      otherwise.take([&] { cache.read(piece + n / 2, pool, Reading::in_turn); });
      seconds += attending.take([&] {
        cache.for_each_layer(piece + 3 * n / 4,
                             [&](const auto& view) { attend(view, q, out, workspace, {.level = level}, pool); });
      });
    }
    state.SetIterationTime(seconds);
  }
  const double bandwidth = cache.bytes_of_elements() / std::min(in_order.seconds(), otherwise.seconds());
  const double rate = cache.bytes() / attending.seconds();
  state.counters["GB/s"] = rate / 1e9;
  state.counters["read_GB/s"] = bandwidth / 1e9;
  state.counters["in_order_GB/s"] = cache.bytes_of_elements() / in_order.seconds() / 1e9;
  state.counters["share"] = rate / bandwidth;
  state.counters["positions/s"] = cache.positions() / attending.seconds();
}

template <class Dtype>
void prefill(benchmark::State& state, const Shape& shape, Index s, CpuLevel level, Exactness exactness) {
  const FilledCache<Dtype> cache(shape, s, 1, 1);
  const RowMatrix q = RowMatrix::Random(s, shape.query_width());
  RowMatrix out(q.rows(), q.cols());
  AttendWorkspace workspace;
  Best best;
  for (auto _ : state) {
    state.SetIterationTime(
        best.take([&] { attend(cache.view(0), q, out, workspace, {.exactness = exactness, .level = level}); }));
  }
  const double pairs = static_cast<double>(s) * static_cast<double>(s + 1) / 2 * static_cast<double>(shape.n_heads);
  state.counters["GFLOP/s"] = 4 * pairs * static_cast<double>(shape.d_head) / best.seconds() / 1e9;
}

template <class Dtype>
void add_decode() {
  const auto add = [](const char* what, const Shape& shape, Index s, Index threads, CpuLevel level) {
    const std::string name = std::string(what) + "/shape:" + shape.name + "/type:" + type_name<Dtype>() +
                             "/s:" + std::to_string(s) + "/threads:" + std::to_string(threads) +
                             "/level:" + tinyllm::name(level);
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { decode<Dtype>(state, shape, s, threads, level); })
        ->UseManualTime()
        ->Iterations(4)
        ->Unit(benchmark::kMillisecond);
  };
  for (const Shape& shape : shapes) {
    for (const Index s : {1024, 8192, 32768}) {
      for (const Index threads : {1, 2}) {
        for (const CpuLevel level : levels_of<Dtype>()) add("decode", shape, s, threads, level);
      }
    }
  }
  // What the other query heads of a group cost: the same keys and values with one each.
  for (const Shape& shape : lone_heads) add("decode_one_query_head", shape, 8192, 1, levels_of<Dtype>().back());
}

template <class Dtype>
void add_prefill() {
  constexpr Index s = 512;
  const auto add = [](const Shape& shape, CpuLevel level, Exactness exactness, const char* kind) {
    const std::string name = std::string(kind) + "/shape:" + shape.name + "/type:" + type_name<Dtype>() +
                             "/s:" + std::to_string(s) + "/level:" + tinyllm::name(level);
    benchmark::RegisterBenchmark(name.c_str(),
                                 [=](benchmark::State& state) { prefill<Dtype>(state, shape, s, level, exactness); })
        ->UseManualTime()
        ->Iterations(12)
        ->Unit(benchmark::kMillisecond);
  };
  for (const Shape& shape : shapes) {
    for (const CpuLevel level : levels_of<Dtype>()) add(shape, level, Exactness::rounding, "prefill");
    add(shape, levels_of<Dtype>().back(), Exactness::reproducible, "prefill_reproducible");
  }
}

}  // namespace

int main(int argc, char** argv) {
  for_each_type<float, Eigen::half, Eigen::bfloat16, std::int8_t>([]<class Dtype>(Dtype*) {
    add_decode<Dtype>();
    add_prefill<Dtype>();
  });
  return run_suite(argc, argv);
}
