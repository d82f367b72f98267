// SPDX-License-Identifier: Apache-2.0
// Any bytes as tokens and stop strings: the stream's text is that of all bytes up to the first stop, by both decoder paths.
#include "support/bytes_tokenizer.hpp"

#include <tinyllm/text/text_stream.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using namespace tinyllm;

namespace {

void require(bool holds) {
  if (!holds) __builtin_trap();
}

// Parts divided by the byte 0x0A: the first is a stop string, the others are tokens.
std::vector<std::string> parts_of(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> parts(1);
  for (std::size_t i = 0; i < size; ++i) {
    if (data[i] == '\n') {
      parts.emplace_back();
    } else {
      parts.back() += static_cast<char>(data[i]);
    }
  }
  return parts;
}

template <class Tokenizer>
std::string streamed(const Tokenizer& tokenizer, std::size_t n, const std::vector<std::string>& stops) {
  TextStream stream(tokenizer, {.stop = stops});
  std::string text;
  for (TokenId id = 0; id < static_cast<TokenId>(n) && !stream.stopped(); ++id) {
    const std::string piece(stream.push(id));
    require(test_support::decode_bytes(piece) == piece);
    text += piece;
  }
  text += stream.finish();
  const std::vector<TextRange> ranges = stream.ranges();
  for (const TextRange& range : ranges) require(range.begin <= range.end && range.end <= text.size());
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> tokens = parts_of(data, size);
  std::vector<std::string> stops = {test_support::decode_bytes(tokens.front())};
  if (stops.front().empty()) stops.clear();
  tokens.erase(tokens.begin());
  std::string bytes;
  for (const std::string& token : tokens) bytes += token;
  const std::string all = test_support::decode_bytes(bytes);
  const std::size_t end = stops.empty() ? std::string::npos : all.find(stops.front());

  const test_support::BytesTokenizer tokenizer(tokens);
  const std::string text = streamed(tokenizer, tokens.size(), stops);
  require(text == all.substr(0, end));
  require(streamed(test_support::DecodeOnly(tokenizer), tokens.size(), stops) == text);
  return 0;
}
