// SPDX-License-Identifier: Apache-2.0
// expect: (deleted function|deleted constructor)
#include <tinyllm/text/text_stream.hpp>

struct Tokenizer {
  std::string decode(const std::vector<tinyllm::TokenId>&) const { return "x"; }
};

int main() {
  const Tokenizer tokenizer;
#ifdef CONTROL
  const tinyllm::TextStream<Tokenizer> stream(tokenizer);
#else
  const tinyllm::TextStream<Tokenizer> stream{Tokenizer()};
#endif
}
