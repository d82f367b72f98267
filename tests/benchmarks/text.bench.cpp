// SPDX-License-Identifier: Apache-2.0
// What a token costs on its way from id to text: both decoder paths, printable or not, short streams and long ones, and
// stop strings from none to a thousand. `ns_a_token` is the time of one token.
#include "suite.hpp"
#include "support/bytes_tokenizer.hpp"

#include <tinyllm/text/text_stream.hpp>

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

namespace {

using namespace tinyllm;
using test_support::BytesTokenizer;
using test_support::DecodeOnly;

// Words as a byte-level vocabulary has them, and ids that never become printable.
const BytesTokenizer& tokenizer() {
  static const BytesTokenizer bytes({" the",    " Fox", "ing",  ",",    " looked",  " up",      " at",
                                     " grapes", ".",    "\n",   " é",   "\xF0\x9F", "\x98\x80", " and",
                                     " said",   " to",  "\x80", "\xFF", "\xE4\xB8", "\xBF"});
  return bytes;
}

constexpr TokenId first_unprintable = 16;

std::vector<TokenId> ids(std::size_t n, bool printable) {
  std::vector<TokenId> out(n);
  for (std::size_t i = 0; i < n; ++i) {
    out[i] = printable ? static_cast<TokenId>((i * 7 + i / 16) % 16) : static_cast<TokenId>(first_unprintable + i % 2);
  }
  return out;
}

template <class F>
void measure(benchmark::State& state, std::size_t tokens, F f) {
  bench::Best best;
  for (auto _ : state) state.SetIterationTime(best.take(f));
  state.counters["ns_a_token"] = best.seconds() * 1e9 / static_cast<double>(tokens);
}

template <class Tokenizer>
void push_all(benchmark::State& state, const Tokenizer& tokenizer) {
  const auto n = static_cast<std::size_t>(state.range(0));
  const std::vector<TokenId> all = ids(n, state.range(1) != 0);
  measure(state, n, [&] {
    IncrementalDecoder decoder(tokenizer);
    std::size_t bytes = 0;
    for (const TokenId id : all) bytes += decoder.push(id).size();
    benchmark::DoNotOptimize(bytes);
  });
}

void decoder_by_bytes(benchmark::State& state) { push_all(state, tokenizer()); }
void decoder_through_window(benchmark::State& state) { push_all(state, DecodeOnly(tokenizer())); }

void stream_with_stops(benchmark::State& state) {
  std::vector<std::string> stops;
  for (std::int64_t i = 0; i < state.range(0); ++i) stops.push_back(" grapes and more " + std::to_string(i));
  const std::vector<TokenId> all = ids(100'000, true);
  measure(state, all.size(), [&] {
    TextStream stream(tokenizer(), {.stop = stops});
    std::size_t bytes = 0;
    for (const TokenId id : all) bytes += stream.push(id).size();
    benchmark::DoNotOptimize(bytes);
  });
}

BENCHMARK(decoder_by_bytes)
    ->ArgNames({"tokens", "printable"})
    ->ArgsProduct({{1'000, 1'000'000}, {0, 1}})
    ->UseManualTime()
    ->MinTime(0.1);
BENCHMARK(decoder_through_window)
    ->ArgNames({"tokens", "printable"})
    ->ArgsProduct({{1'000, 1'000'000}, {0, 1}})
    ->UseManualTime()
    ->MinTime(0.1);
BENCHMARK(stream_with_stops)->ArgName("stops")->Arg(0)->Arg(1)->Arg(20)->Arg(1000)->UseManualTime()->MinTime(0.1);

}  // namespace

int main(int argc, char** argv) { return bench::run_suite(argc, argv); }
