// SPDX-License-Identifier: Apache-2.0
// What the benchmarks share: timing by the best of several runs, names, and the main function of every program.
//
// Names are `what/key:value/...`, which run.py and draw.py take apart. GB are 10^9 bytes.
#pragma once

#include <tinyllm/core/cpu_level.hpp>
#include <tinyllm/core/types.hpp>

#include <benchmark/benchmark.h>
#include <Eigen/Core>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bench {

using tinyllm::CpuLevel;
using tinyllm::Index;
using tinyllm::RowMatrix;

/// The shortest of several runs: on a machine with other work, what comes closest to the work itself.
class Best {
 public:
  /// Runs `f` and returns its seconds.
  template <class F>
  double take(F f) {
    const auto start = std::chrono::steady_clock::now();
    f();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    least_ = std::min(least_, seconds);
    return seconds;
  }
  double seconds() const { return least_; }

 private:
  double least_ = 1e30;
};

template <class Dtype>
constexpr const char* type_name() {
  if constexpr (std::same_as<Dtype, float>) return "float";
  if constexpr (std::same_as<Dtype, Eigen::half>) return "half";
  if constexpr (std::same_as<Dtype, Eigen::bfloat16>) return "bfloat16";
  if constexpr (std::same_as<Dtype, std::int8_t>) return "int8";
}

/// Calls `f` with a null pointer to each type.
template <class... Dtypes, class F>
void for_each_type(F f) {
  (f(static_cast<Dtypes*>(nullptr)), ...);
}

/// The levels that this machine runs, of those given.
inline std::vector<CpuLevel> runnable(std::vector<CpuLevel> levels) {
  std::erase_if(levels, [](CpuLevel level) { return !tinyllm::runs(level); });
  return levels;
}

inline int run_suite(int argc, char** argv) {
  benchmark::AddCustomContext("level", tinyllm::name(tinyllm::best_level()));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace bench
