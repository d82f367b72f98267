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

// Where ill-formed bytes of a prompt end and ours begin: the bytes of the prompt's incomplete character, if we complete it.
std::string answer_text(const BytesTokenizer& tokenizer, const std::vector<TokenId>& prompt, const std::vector<TokenId>& ids) {
  std::vector<TokenId> both = prompt;
  both.insert(both.end(), ids.begin(), ids.end());
  const std::string before = tokenizer.decode(prompt);
  const std::string all = tokenizer.decode(both);
  if (all.starts_with(before)) return all.substr(before.size());
  return all.substr(before.size() - replacement_character.size());  // its U+FFFD has become our character
}

struct Streamed {
  std::vector<std::string> pieces;
  std::string matched;
  std::vector<TextRange> ranges;
};

template <class Tokenizer>
Streamed streamed(const Tokenizer& tokenizer, const std::vector<TokenId>& prompt, const std::vector<TokenId>& ids,
                  const TextStreamOptions& options) {
  TextStream stream(tokenizer, options);
  stream.prime(prompt);
  Streamed out;
  for (const TokenId id : ids) {
    if (stream.stopped()) break;
    out.pieces.emplace_back(stream.push(id));
  }
  out.pieces.emplace_back(stream.finish());
  out.matched = stream.matched().value_or("");
  out.ranges = stream.ranges();
  return out;
}

void run_case(unsigned seed) {
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<std::string> tokens;
  for (std::size_t n = 2 + random() % 12; n > 0; --n) tokens.push_back(random_bytes(random, 3));
  const BytesTokenizer tokenizer(tokens);
  const auto some_ids = [&](std::size_t most) {
    std::vector<TokenId> ids(random() % most);
    for (TokenId& id : ids) id = static_cast<TokenId>(random() % (tokens.size() + 1)) - (random() % 50 == 0 ? 1 : 0);
    return ids;
  };
  const std::vector<TokenId> prompt = random() % 2 == 0 ? std::vector<TokenId>() : some_ids(6);
  const std::vector<TokenId> ids = some_ids(40);
  TextStreamOptions options;
  for (std::size_t n = random() % 4; n > 0; --n) {
    const std::string stop = test_support::decode_bytes(random_bytes(random, 3));
    if (!stop.empty()) options.stop.push_back(stop);
  }
  options.include_stop = random() % 3 == 0;
  options.clusters = random() % 4 == 0 ? Clusters::whole : Clusters::any;

  const std::string all = answer_text(tokenizer, prompt, ids);
  const auto [end, stop] = first_stop(all, options.stop);
  const Streamed out = streamed(tokenizer, prompt, ids, options);
  const DecodeOnly window(tokenizer);
  const Streamed through_window = streamed(window, prompt, ids, options);
  REQUIRE(through_window.pieces == out.pieces);
  REQUIRE(through_window.matched == out.matched);
  REQUIRE(out.matched == stop);
  std::string text;
  for (const std::string& piece : out.pieces) {
    REQUIRE(test_support::decode_bytes(piece) == piece);
    text += piece;
  }
  REQUIRE(text == all.substr(0, options.include_stop ? end : end - stop.size()));
  for (const TextRange& range : out.ranges) REQUIRE(range.end <= text.size());

  // Eager replacement changes when text comes, not what it is.
  options.replacement = Replacement::eager;
  const Streamed eager = streamed(tokenizer, prompt, ids, options);
  std::string eager_text;
  for (const std::string& piece : eager.pieces) eager_text += piece;
  REQUIRE(eager_text == text);
}

}  // namespace

TEST_CASE("property: the stream's text is that of all ids up to the first stop") {
  const std::size_t wanted = property::cases(20'000);
  for (std::size_t i = 0; i < wanted; ++i) run_case(static_cast<unsigned>(i));
  MESSAGE(wanted << " cases, seeds 0 to " << wanted - 1);
}
