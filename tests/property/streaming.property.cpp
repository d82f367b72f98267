// SPDX-License-Identifier: Apache-2.0
// Random vocabularies, ids and stop strings through the whole text stream, against the rules spelled out over decode(all ids).
#include "property/cases.hpp"
#include "support/bytes_tokenizer.hpp"

#include <tinyllm/text/text_stream.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>

using namespace tinyllm;
using test_support::BytesTokenizer;
using test_support::DecodeOnly;

namespace {

const std::vector<std::string>& alphabet() {
  static const std::vector<std::string> parts = {"a",    "b",    "ab",   "\n",           " ",    "\xC3",    "\xA9",
                                                 "é",    "\xE4", "\xB8", "\xAD",         "中",   "\xF0",    "\x9F",
                                                 "\x98", "\x80", "😀",    "\xEF\xBF\xBD", "\xFF", "\xED\xA0"};
  return parts;
}

std::string random_bytes(std::mt19937& random, std::size_t most) {
  std::string bytes;
  for (std::size_t n = random() % (most + 1); n > 0; --n) bytes += alphabet()[random() % alphabet().size()];
  return bytes;
}

// Where the first stop string completes, and which: the earliest end, of several the longest.
std::pair<std::size_t, std::string> first_stop(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop) && stop.size() > best.size()) best = stop;
    }
    if (!best.empty()) return {end, best};
  }
  return {text.size(), ""};
}

template <class Tokenizer>
std::vector<std::string> streamed(const Tokenizer& tokenizer, const std::vector<TokenId>& ids,
                                  const std::vector<std::string>& stops) {
  TextStream stream(tokenizer, {.stop = stops});
  std::vector<std::string> pieces;
  for (const TokenId id : ids) {
    if (stream.stopped()) break;
    pieces.emplace_back(stream.push(id));
  }
  pieces.emplace_back(stream.finish());
  pieces.emplace_back(stream.matched().value_or(""));
  return pieces;
}

void run_case(unsigned seed) {
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<std::string> tokens;
  for (std::size_t n = 2 + random() % 12; n > 0; --n) tokens.push_back(random_bytes(random, 3));
  const BytesTokenizer tokenizer(tokens);
  std::vector<TokenId> ids(random() % 40);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % (tokens.size() + 1)) - (random() % 50 == 0 ? 1 : 0);
  std::vector<std::string> stops;
  for (std::size_t n = random() % 4; n > 0; --n) {
    const std::string stop = test_support::decode_bytes(random_bytes(random, 3));
    if (!stop.empty()) stops.push_back(stop);
  }

  const std::string all = tokenizer.decode(ids);
  const auto [end, stop] = first_stop(all, stops);
  std::vector<std::string> pieces = streamed(tokenizer, ids, stops);
  REQUIRE(streamed(DecodeOnly(tokenizer), ids, stops) == pieces);
  REQUIRE(pieces.back() == stop);
  pieces.pop_back();
  std::string text;
  for (const std::string& piece : pieces) {
    REQUIRE(test_support::decode_bytes(piece) == piece);
    text += piece;
  }
  REQUIRE(text == all.substr(0, end - stop.size()));
}

}  // namespace

TEST_CASE("property: the stream's text is that of all ids up to the first stop") {
  const std::size_t wanted = property::cases(20'000);
  for (std::size_t i = 0; i < wanted; ++i) run_case(static_cast<unsigned>(i));
  MESSAGE(wanted << " cases, seeds 0 to " << wanted - 1);
}
