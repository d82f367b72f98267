// SPDX-License-Identifier: Apache-2.0
// What choosing a token costs: vocabularies of real models, every kind of filter, logits with a few likely ids and logits
// that are nearly flat. `portable_...` are the same for an old processor.
#include <tinyllm/sampling/sampler.hpp>

#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace tinyllm;

// Peaked: a normal bulk and a few hundred ids that stand out, as a model's logits have them. Flat: a tenth of the spread.
std::vector<float> logits_of(std::size_t n, bool peaked) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> logits(n);
  for (float& x : logits) x = normal(random) * (peaked ? 2.0F : 0.2F);
  if (peaked) {
    for (int i = 0; i < 300; ++i) logits[random() % n] += 3.0F + 8.0F * std::abs(normal(random));
  }
  return logits;
}

void choose_greedily(benchmark::State& state, CpuLevel level, bool peaked) {
  const std::vector<float> logits = logits_of(static_cast<std::size_t>(state.range(0)), peaked);
  for (auto _ : state) benchmark::DoNotOptimize(greedy_choice(logits, level));
}

void choose(benchmark::State& state, CpuLevel level, bool peaked, const SamplingParams& params) {
  const std::vector<float> logits = logits_of(static_cast<std::size_t>(state.range(0)), peaked);
  const std::vector<TokenId> prompt = {1, 2, 3, 5, 8, 13};
  Sampler sampler(params, level);
  Rng rng = request_rng(3);
  for (auto _ : state) benchmark::DoNotOptimize(sampler.sample(logits, {}, rng, prompt));
}

struct Case {
  const char* name;
  SamplingParams params;
};

void add_benchmarks(CpuLevel level, const std::string& prefix, const std::vector<std::int64_t>& vocabularies) {
  const std::vector<Case> cases = {
      {"greedy_logprob", {}},
      {"top_k_top_p", {.temperature = 1.0F, .top_k = 40, .top_p = 0.95F}},
      {"top_p", {.temperature = 1.0F, .top_p = 0.95F}},
      {"top_p_cooler", {.temperature = 0.8F, .top_p = 0.95F}},
      {"min_p", {.temperature = 1.0F, .min_p = 0.05F}},
      {"temperature", {.temperature = 0.8F}},
      {"top_k_large", {.temperature = 1.0F, .top_k = 5000}},
      {"penalties_greedy", {.repetition_penalty = 1.1F}},
  };
  const auto add = [&](const std::string& name, auto function) {
    auto* benchmark = benchmark::RegisterBenchmark(name.c_str(), function);
    benchmark->ArgName("vocabulary")->Unit(benchmark::kMicrosecond);
    for (const std::int64_t n : vocabularies) benchmark->Arg(n);
  };
  for (const bool peaked : {true, false}) {
    const std::string shape = peaked ? "/peaked" : "/flat";
    add(prefix + "greedy_choice" + shape, [=](benchmark::State& state) { choose_greedily(state, level, peaked); });
    for (const Case& one : cases) {
      add(prefix + one.name + shape, [=](benchmark::State& state) { choose(state, level, peaked, one.params); });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  add_benchmarks(best_level(), "", {49152, 131072, 262144});
  add_benchmarks(CpuLevel::portable, "portable_", {131072});
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
