// SPDX-License-Identifier: Apache-2.0
// What the generate loop itself costs a token: a scripted model's own time is taken off. `ns_a_token` holds the choice of the
// token (with its log-probability), the cache's bookkeeping, the text and the stop strings.
#include "suite.hpp"
#include "support/bytes_tokenizer.hpp"
#include "support/scripted_model.hpp"

#include <tinyllm/generate/generate.hpp>

#include <span>
#include <string_view>
#include <vector>

namespace {

using namespace bench;
using tinyllm::Positions;
using tinyllm::TokenId;

constexpr Index prompt_size = 16;
constexpr Index tokens = 2000;

class TimedModel {
 public:
  TimedModel(std::vector<TokenId> script, Index vocab_size)
      : config(), model_(std::move(script), vocab_size, static_cast<std::size_t>(prompt_size)) {}

  test_support::ScriptedModel::Config config;
  double seconds = 0;

  RowMatrix forward(std::span<const TokenId> ids, Positions positions, auto& cache) {
    RowMatrix logits;
    Best once;
    seconds += once.take([&] { logits = model_.forward(ids, positions, cache); });
    return logits;
  }

 private:
  test_support::ScriptedModel model_;
};

void generate(benchmark::State& state) {
  const Index vocab_size = state.range(0);
  const auto tokenizer = test_support::BytesTokenizer::of_all_bytes();
  std::vector<TokenId> script(static_cast<std::size_t>(tokens));
  for (std::size_t i = 0; i < script.size(); ++i) script[i] = static_cast<TokenId>('a' + i * i % 26);
  double least = 1e30;
  for (auto _ : state) {
    TimedModel model(script, vocab_size);
    tinyllm::KVCache<float> cache(tinyllm::cache_dims(model));
    std::size_t bytes = 0;
    Best whole;
    const double seconds = whole.take([&] {
      tinyllm::generate(model, tokenizer, std::vector<TokenId>(static_cast<std::size_t>(prompt_size), 'x'),
                        {.max_tokens = tokens, .stop = {"no such text", "\n\n"}}, cache,
                        [&bytes](std::string_view piece) { bytes += piece.size(); });
    });
    benchmark::DoNotOptimize(bytes);
    least = std::min(least, seconds - model.seconds);
    state.SetIterationTime(seconds - model.seconds);
  }
  state.counters["ns_a_token"] = least * 1e9 / static_cast<double>(tokens);
}

BENCHMARK(generate)->ArgName("vocabulary")->Arg(256)->Arg(49152)->UseManualTime()->Iterations(5)->Unit(benchmark::kMillisecond);

}  // namespace

int main(int argc, char** argv) { return run_suite(argc, argv); }
