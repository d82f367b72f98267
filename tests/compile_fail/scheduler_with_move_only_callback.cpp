// SPDX-License-Identifier: Apache-2.0
// expect: tinyllm: on_text must be copyable: capture a std::shared_ptr
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
  const Tokenizer tokenizer;
  const auto pool = std::make_shared<tinyllm::BlockPool<float>>(tinyllm::pool_dims(tinyllm::cache_dims(model)));
  tinyllm::Scheduler scheduler(model, tokenizer, pool);
#ifdef CONTROL
  auto received = std::make_shared<std::string>();
#else
  auto received = std::make_unique<std::string>();
#endif
  scheduler.submit("x", {}, [to = std::move(received)](std::string_view piece) { *to += piece; });
}
