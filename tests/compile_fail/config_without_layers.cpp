// SPDX-License-Identifier: Apache-2.0
// expect: tinyllm: the model's config needs num_hidden_layers
#include <tinyllm/generate/causal_lm.hpp>

struct Config {
#ifdef CONTROL
  int num_hidden_layers = 2;
#endif
  int num_attention_heads = 1, hidden_size = 8, max_position_embeddings = 2;
};

int main() { static_cast<void>(tinyllm::cache_dims(Config())); }
