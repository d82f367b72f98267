// SPDX-License-Identifier: Apache-2.0
// expect: tinyllm: the model needs a member forward_batch
#include <tinyllm/batching/scheduler.hpp>

struct Tokenizer {
  std::vector<tinyllm::TokenId> encode(std::string_view) const { return {1}; }
  std::string decode(const std::vector<tinyllm::TokenId>&) const { return "x"; }
};

struct Model {
  struct Config {
    int num_hidden_layers = 1, num_attention_heads = 1, hidden_size = 1, max_position_embeddings = 2;
  } config;
#ifdef CONTROL
  template <class Cache>
  tinyllm::RowMatrix forward_batch(std::span<const tinyllm::BatchEntry<Cache>>) {
    return {};
  }
#else
  tinyllm::RowMatrix forward(std::span<const tinyllm::TokenId>, tinyllm::Positions, auto&) { return {}; }
#endif
};

int main() {
  Model model;
  const Tokenizer tokenizer;
  const auto pool = std::make_shared<tinyllm::BlockPool<float>>(tinyllm::pool_dims(tinyllm::cache_dims(model)));
  tinyllm::Scheduler scheduler(model, tokenizer, pool);
  scheduler.run();
}
