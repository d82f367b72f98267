// SPDX-License-Identifier: Apache-2.0
// expect: tinyllm: forward must return the logits as a float Eigen matrix
#include <tinyllm/generate/causal_lm.hpp>

#include <vector>

struct Model {
#ifdef CONTROL
  std::vector<float> forward(std::span<const tinyllm::TokenId>, tinyllm::Positions, tinyllm::KVCache<float>&) { return {}; }
#else
  std::vector<double> forward(std::span<const tinyllm::TokenId>, tinyllm::Positions, tinyllm::KVCache<float>&) { return {}; }
#endif
};

int main() { tinyllm::check_causal_lm<Model, tinyllm::KVCache<float>>(); }
