// SPDX-License-Identifier: Apache-2.0
// expect: tinyllm: the cache needs seq_len
#include <tinyllm/generate/generate.hpp>

struct Tokenizer {
  std::vector<tinyllm::TokenId> encode(std::string_view) const { return {1}; }
  std::string decode(const std::vector<tinyllm::TokenId>&) const { return "x"; }
};

struct Cache {
  tinyllm::Index seq_len() const { return 0; }
  tinyllm::Index capacity() const { return 8; }
  tinyllm::Positions positions(tinyllm::Index n) const { return {0, n}; }
#ifdef CONTROL
  void truncate(tinyllm::Index) {}
#endif
};

struct Model {
  tinyllm::RowMatrix forward(std::span<const tinyllm::TokenId>, tinyllm::Positions, auto&) { return {}; }
};

int main() {
  Model model;
  Cache cache;
  tinyllm::generate(model, Tokenizer(), "x", {}, cache);
}
