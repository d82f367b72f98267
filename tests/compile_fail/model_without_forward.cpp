// SPDX-License-Identifier: Apache-2.0
// expect: tinyllm: the model needs a member forward
#include <tinyllm/generate/causal_lm.hpp>

struct Model {
#ifdef CONTROL
  tinyllm::RowMatrix forward(std::span<const tinyllm::TokenId>, tinyllm::Positions, auto& cache) {
    static_cast<void>(cache.seq_len());
    return {};
  }
#endif
};

int main() { tinyllm::check_causal_lm<Model, tinyllm::KVCache<float>>(); }
