// SPDX-License-Identifier: Apache-2.0
// Tokens that end inside characters, and text that is whole all the same.
#include <tinyllm/text/incremental_decoder.hpp>

#include <iostream>

// Any tokenizer that can give a token's bytes will do.
struct Tokenizer {
  std::vector<std::string> tokens = {"caf", "\xC3", "\xA9", " \xF0\x9F", "\x98\x80", "!"};
  tinyllm::Index vocab_size() const { return static_cast<tinyllm::Index>(tokens.size()); }
  std::string_view token_bytes(tinyllm::TokenId id) const { return tokens[static_cast<std::size_t>(id)]; }
};

int main() {
  const Tokenizer tokenizer;
  tinyllm::IncrementalDecoder decoder(tokenizer);
  for (tinyllm::TokenId id = 0; id < 6; ++id) std::cout << '[' << decoder.push(id) << ']';
  static_cast<void>(decoder.push(3));  // the answer ends inside a character
  std::cout << '[' << decoder.flush() << "]\n";
}
