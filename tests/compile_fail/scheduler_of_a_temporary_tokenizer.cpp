// SPDX-License-Identifier: Apache-2.0
// expect: (deleted function|deleted constructor)
#include <tinyllm/batching/scheduler.hpp>

struct Tokenizer {
  std::vector<tinyllm::TokenId> encode(std::string_view) const { return {1}; }
  std::string decode(const std::vector<tinyllm::TokenId>&) const { return "x"; }
};

struct Model {
  struct Config {
    int num_hidden_layers = 1, num_attention_heads = 1, hidden_size = 1, max_position_embeddings = 2;
  } config;
  template <class Cache>
  tinyllm::RowMatrix forward_batch(std::span<const tinyllm::BatchEntry<Cache>>) {
    return {};
  }
};

int main() {
  Model model;
  const auto pool = std::make_shared<tinyllm::BlockPool<float>>(tinyllm::pool_dims(tinyllm::cache_dims(model)));
#ifdef CONTROL
  const Tokenizer tokenizer;
  tinyllm::Scheduler<Model, Tokenizer, float> scheduler(model, tokenizer, pool);
#else
  tinyllm::Scheduler<Model, Tokenizer, float> scheduler(model, Tokenizer(), pool);
#endif
}
