// SPDX-License-Identifier: Apache-2.0
// One program, two files with different flags: each gives right answers at every level, whatever the order of linking.
#include <tinyllm/core/cpu_level.hpp>

#include <cstdio>

double baseline_answer(tinyllm::CpuLevel highest);
double wide_answer(tinyllm::CpuLevel highest);

int main() {
  int failures = 0;
  const auto check = [&](const char* file, tinyllm::CpuLevel level, double error) {
    const bool right = error < 1;
    std::printf("%s up to %s: %.2g of the error allowed%s\n", file, name(level), error, right ? "" : "  WRONG");
    failures += right ? 0 : 1;
  };
  for (const tinyllm::CpuLevel level : tinyllm::cpu_levels) {
    if (!tinyllm::runs(level)) continue;
    check("baseline", level, baseline_answer(level));
    if (tinyllm::runs(tinyllm::CpuLevel::avx512)) check("wide", level, wide_answer(level));
  }
  return failures == 0 ? 0 : 1;
}
