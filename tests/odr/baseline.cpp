// SPDX-License-Identifier: Apache-2.0
// Compiled with the compiler's own idea of the oldest processor.
#include "answer.hpp"

double baseline_answer(tinyllm::CpuLevel highest) { return odr::worst_of_all(highest); }
