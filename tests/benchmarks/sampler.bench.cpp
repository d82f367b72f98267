// SPDX-License-Identifier: Apache-2.0
// What choosing a token costs: vocabularies of real models, every kind of filter, logits with a few likely ids and logits
// that are nearly flat. `us_a_token` is the best
// mean of 4 choices.
#include "suite.hpp"

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

template <class F>
void measure(benchmark::State& state, F choose) {
  constexpr int choices = 4;
  bench::Best best;
  for (auto _ : state) {
    state.SetIterationTime(best.take([&] {
      for (int i = 0; i < choices; ++i) benchmark::DoNotOptimize(choose());
    }));
  }
  state.counters["us_a_token"] = best.seconds() * 1e6 / choices;
}

void choose_greedily(benchmark::State& state, CpuLevel level, std::size_t n, bool peaked) {
  const std::vector<float> logits = logits_of(n, peaked);
  measure(state, [&] { return greedy_choice(logits, level); });
}

void choose(benchmark::State& state, CpuLevel level, std::size_t n, bool peaked, const SamplingParams& params) {
  const std::vector<float> logits = logits_of(n, peaked);
  const std::vector<TokenId> prompt = {1, 2, 3, 5, 8, 13};
  Sampler sampler(params, level);
  Rng rng = request_rng(3);
  measure(state, [&] { return sampler.sample(logits, {}, rng, prompt); });
}

struct Case {
  const char* name;
  SamplingParams params;
};

void add_benchmarks(CpuLevel level, const std::vector<std::int64_t>& vocabularies) {
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
  for (const std::int64_t n : vocabularies) {
    for (const bool peaked : {true, false}) {
      const auto add = [&](const char* what, auto function) {
        const std::string name = std::string("sampler/case:") + what + "/logits:" + (peaked ? "peaked" : "flat") +
                                 "/vocabulary:" + std::to_string(n) + "/level:" + tinyllm::name(level);
        benchmark::RegisterBenchmark(name.c_str(), function)->UseManualTime()->Iterations(100)->Unit(benchmark::kMicrosecond);
      };
      const auto size = static_cast<std::size_t>(n);
      add("greedy_choice", [=](benchmark::State& state) { choose_greedily(state, level, size, peaked); });
      for (const Case& one : cases) {
        add(one.name, [=](benchmark::State& state) { choose(state, level, size, peaked, one.params); });
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  add_benchmarks(best_level(), {49152, 131072, 262144});
  if (best_level() != CpuLevel::portable) add_benchmarks(CpuLevel::portable, {131072});
  return bench::run_suite(argc, argv);
}
