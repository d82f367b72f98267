// SPDX-License-Identifier: Apache-2.0
// expect: tinyllm: the model needs a member forward
#include <tinyllm/generate/generate.hpp>

struct Tokenizer {
  std::vector<tinyllm::TokenId> encode(std::string_view) const { return {1}; }
  std::string decode(const std::vector<tinyllm::TokenId>&) const { return "x"; }
};

struct Model {
  struct Config {
    int num_hidden_layers = 1, num_attention_heads = 1, hidden_size = 1, max_position_embeddings = 2;
  } config;
#ifdef CONTROL
  tinyllm::RowMatrix forward(std::span<const tinyllm::TokenId>, tinyllm::Positions, auto&) { return {}; }
#else
  tinyllm::RowMatrix forward(std::vector<int>) { return {}; }
#endif
};

int main() {
  Model model;
  tinyllm::KVCache<float> cache(tinyllm::cache_dims(model));
  tinyllm::generate(model, Tokenizer(), "x", {}, cache);
}
