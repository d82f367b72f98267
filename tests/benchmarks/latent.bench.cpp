// SPDX-License-Identifier: Apache-2.0
// One decode step's attention over a latent cache with the sizes of DeepSeek-V2 and V3: rows of 512 and 64, read by all heads.
//
// As `decode` in attention.bench.cpp, on one thread. The more heads there are, the more is computed for each byte: `GFLOP/s`
// counts a product and a sum for each number of each key and each value.
#include "filled_cache.hpp"
#include "suite.hpp"

#include <tinyllm/attention/attend_latent.hpp>
#include <tinyllm/cache/latent_cache.hpp>

#include <string>

namespace {

using namespace bench;

constexpr Index latent = 512;
constexpr Index rope = 64;
constexpr Index s = 8192;

template <class Dtype>
tinyllm::LatentCache<Dtype> filled(Index n_layers) {
  tinyllm::LatentCache<Dtype> cache({.n_layers = n_layers, .d_latent = latent, .d_rope = rope, .max_len = s});
  const RowMatrix latents = RowMatrix::Random(s, latent);
  const RowMatrix keys = RowMatrix::Random(s, rope);
  using tinyllm::ChunkView;
  for (Index layer = 0; layer < n_layers; ++layer) {
    cache.update(layer, ChunkView::from_projection(latents, 1), ChunkView::from_projection(keys, 1));
  }
  return cache;
}

template <class Dtype>
void decode(benchmark::State& state, Index heads, CpuLevel level) {
  constexpr Index layer_bytes = s * (latent + rope) * Index{sizeof(Dtype)};
  constexpr Index n_layers = working_set / layer_bytes;
  static const tinyllm::LatentCache<Dtype> cache = filled<Dtype>(n_layers);
  const RowMatrix q = RowMatrix::Random(1, heads * (latent + rope));
  RowMatrix out(1, heads * latent);
  tinyllm::AttendWorkspace workspace;
  Best reading;
  Best attending;
  Index layer = 0;
  const auto bytes_of = [&](Index i) { return reinterpret_cast<const char*>(cache.view(i % n_layers).both(0).data()); };
  for (auto _ : state) {
    reading.take([&] { benchmark::DoNotOptimize(read_bytes<false>(bytes_of(layer), layer_bytes)); });
    reading.take([&] { benchmark::DoNotOptimize(read_bytes<true>(bytes_of(layer + n_layers / 3), layer_bytes)); });
    const auto view = cache.view((layer + 2 * n_layers / 3) % n_layers);
    state.SetIterationTime(attending.take([&] { attend(view, q, out, workspace, {.scale = 0.07F, .level = level}); }));
    layer = (layer + 1) % n_layers;
  }
  const double rate = static_cast<double>(layer_bytes) / attending.seconds();
  state.counters["GB/s"] = rate / 1e9;
  state.counters["read_GB/s"] = static_cast<double>(layer_bytes) / reading.seconds() / 1e9;
  state.counters["share"] = reading.seconds() / attending.seconds();
  state.counters["GFLOP/s"] = 2.0 * static_cast<double>(s * heads * (2 * latent + rope)) / attending.seconds() / 1e9;
  state.counters["positions/s"] = static_cast<double>(s) / attending.seconds();
}

template <class Dtype>
void add_benchmarks() {
  for (const Index heads : {16, 128}) {
    for (const CpuLevel level : runnable({CpuLevel::portable, CpuLevel::avx2, CpuLevel::avx512, CpuLevel::avx512_bf16})) {
      const std::string name = std::string("latent/type:") + type_name<Dtype>() + "/heads:" + std::to_string(heads) +
                               "/s:" + std::to_string(s) + "/level:" + tinyllm::name(level);
      benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { decode<Dtype>(state, heads, level); })
          ->UseManualTime()
          ->Iterations(20)
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  for_each_type<float, Eigen::half, Eigen::bfloat16>([]<class Dtype>(Dtype*) { add_benchmarks<Dtype>(); });
  return run_suite(argc, argv);
}
