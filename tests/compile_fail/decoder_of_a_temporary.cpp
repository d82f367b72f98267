// SPDX-License-Identifier: Apache-2.0
// expect: (deleted function|deleted constructor)
#include <tinyllm/text/incremental_decoder.hpp>

struct Tokenizer {
  std::string decode(const std::vector<tinyllm::TokenId>&) const { return "x"; }
};

int main() {
  const Tokenizer tokenizer;
#ifdef CONTROL
  const tinyllm::IncrementalDecoder<Tokenizer> decoder(tokenizer);
#else
  const tinyllm::IncrementalDecoder<Tokenizer> decoder{Tokenizer()};
#endif
}
