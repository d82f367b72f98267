// SPDX-License-Identifier: Apache-2.0
// What it costs to put rows into a cache: the conversions, beside memcpy moving as many bytes, and `update` itself.
//
// GB/s count the bytes read and those written. Conversions and memcpy take turns, and the best of each counts.
#include "filled_cache.hpp"
#include "suite.hpp"

#include <tinyllm/cache/kv_cache.hpp>
#include <tinyllm/core/dtype.hpp>

#include <cstring>
#include <string>
#include <vector>

namespace {

using namespace bench;

constexpr Index row = 128;  // int8 rows have a scale each

template <class Dtype>
void to_stored(const std::vector<float>& floats, std::vector<Dtype>& stored, CpuLevel level) {
  const auto count = static_cast<Index>(floats.size());
  if constexpr (std::same_as<Dtype, std::int8_t>) {
    for (Index i = 0; i < count; i += row) {
      benchmark::DoNotOptimize(tinyllm::quantize(floats.data() + i, 1, row, stored.data() + i, level));
    }
  } else {
    benchmark::DoNotOptimize(tinyllm::narrow(floats.data(), count, stored.data(), level));
  }
  benchmark::ClobberMemory();
}

// Runs `convert(floats, stored)`, over and over where they are few.
template <class Dtype, class F>
void beside_memcpy(benchmark::State& state, Index count, F convert) {
  std::vector<float> floats(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < floats.size(); ++i) floats[i] = static_cast<float>(i * i % 7919) - 3000.0F;
  std::vector<Dtype> stored(floats.size());
  to_stored(floats, stored, CpuLevel::portable);
  const std::size_t half = floats.size() * (sizeof(float) + sizeof(Dtype)) / 2;
  const std::vector<char> from(half, 1);
  std::vector<char> to(half, 2);
  const Index times = std::max<Index>((Index{1} << 24) / count, 1);
  Best converting;
  Best copying;
  for (auto _ : state) {
    copying.take([&] {
      for (Index i = 0; i < times; ++i) {
        std::memcpy(to.data(), from.data(), half);
        benchmark::ClobberMemory();
      }
    });
    state.SetIterationTime(converting.take([&] {
      for (Index i = 0; i < times; ++i) convert(floats, stored);
    }));
  }
  const double bytes = 2.0 * static_cast<double>(half) * static_cast<double>(times);
  state.counters["GB/s"] = bytes / converting.seconds() / 1e9;
  state.counters["memcpy_GB/s"] = bytes / copying.seconds() / 1e9;
  state.counters["share"] = copying.seconds() / converting.seconds();
}

template <class Dtype>
void add_conversions() {
  const auto add = [](const char* what, Index count, CpuLevel level, auto convert) {
    const std::string name = std::string(what) + "/type:" + type_name<Dtype>() + "/floats:" + std::to_string(count) +
                             "/level:" + tinyllm::name(level);
    benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { beside_memcpy<Dtype>(state, count, convert); })
        ->UseManualTime()
        ->Iterations(16)
        ->Unit(benchmark::kMillisecond);
  };
  for (const Index count : {Index{4096}, Index{1} << 24}) {
    for (const CpuLevel level : runnable({CpuLevel::portable, CpuLevel::avx2, CpuLevel::avx512})) {
      add(std::same_as<Dtype, std::int8_t> ? "quantize" : "narrow", count, level,
          [=](const std::vector<float>& floats, std::vector<Dtype>& stored) { to_stored(floats, stored, level); });
      if constexpr (!std::same_as<Dtype, std::int8_t>) {
        add("widen", count, level, [=](std::vector<float>& floats, const std::vector<Dtype>& stored) {
          tinyllm::widen(stored.data(), static_cast<Index>(stored.size()), floats.data(), level);
          benchmark::ClobberMemory();
        });
      }
    }
  }
}

template <class Dtype>
void update(benchmark::State& state, const Shape& shape, Index tokens) {
  constexpr Index capacity = 4096;
  tinyllm::KVCache<Dtype> cache({.n_layers = 1, .n_kv_heads = shape.n_kv_heads, .d_head = shape.d_head, .max_len = capacity});
  const RowMatrix keys = RowMatrix::Random(tokens, shape.n_kv_heads * shape.d_head);
  const RowMatrix values = RowMatrix::Random(tokens, shape.n_kv_heads * shape.d_head);
  using tinyllm::ChunkView;
  const auto fill = [&] {
    cache.clear();
    for (Index i = 0; i < capacity / tokens; ++i) {
      cache.update(0, ChunkView::from_projection(keys, shape.n_kv_heads), ChunkView::from_projection(values, shape.n_kv_heads));
    }
  };
  fill();  // touches every page
  Best best;
  for (auto _ : state) state.SetIterationTime(best.take(fill));
  const double floats = 2.0 * static_cast<double>(capacity * keys.cols());
  state.counters["GB/s"] = (floats * sizeof(float) + static_cast<double>(cache.nbytes())) / best.seconds() / 1e9;
  state.counters["ns_a_token"] = best.seconds() * 1e9 / static_cast<double>(capacity);
}

template <class Dtype>
void add_updates() {
  for (const Shape& shape : shapes) {
    for (const Index tokens : {1, 512}) {
      const std::string name =
          std::string("update/shape:") + shape.name + "/type:" + type_name<Dtype>() + "/tokens:" + std::to_string(tokens);
      benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { update<Dtype>(state, shape, tokens); })
          ->UseManualTime()
          ->Iterations(20)
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  for_each_type<Eigen::half, Eigen::bfloat16, std::int8_t>([]<class Dtype>(Dtype*) { add_conversions<Dtype>(); });
  for_each_type<float, Eigen::half, Eigen::bfloat16, std::int8_t>([]<class Dtype>(Dtype*) { add_updates<Dtype>(); });
  return run_suite(argc, argv);
}
