// SPDX-License-Identifier: Apache-2.0
#include "support/bytes_tokenizer.hpp"

#include <tinyllm/text/text_stream.hpp>

#include <doctest/doctest.h>

#include <random>

using namespace tinyllm;
using test_support::BytesTokenizer;
using test_support::DecodeOnly;

namespace {

template <class Tokenizer>
std::vector<TextRange> ranges_of(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, TextStreamOptions options = {},
                                 const std::vector<TokenId>& prompt = {}) {
  TextStream stream(tokenizer, std::move(options));
  stream.prime(prompt);
  for (const TokenId id : ids) {
    if (!stream.stopped()) static_cast<void>(stream.push(id));
  }
  static_cast<void>(stream.finish());
  return stream.ranges();
}

using Ranges = std::vector<TextRange>;

// The rule, spelled out over all bytes at once: a token's range runs from the beginning of the character in which its first
// byte lies to the end of that in which its last one does.
Ranges naive_ranges(const BytesTokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::string bytes;
  std::vector<std::size_t> token_of;  // of each byte
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (const char c : tokenizer.token_bytes(ids[i])) {
      bytes += c;
      token_of.push_back(i);
    }
  }
  Ranges ranges(ids.size());
  std::vector<bool> seen(ids.size(), false);
  Utf8Stream utf8;
  std::string text;
  std::size_t begin = 0;  // in text, of the character at work
  std::size_t first = 0;  // its first byte
  const auto finished = [&](std::size_t end_byte) {
    for (std::size_t b = first; b < end_byte; ++b) {
      TextRange& range = ranges[token_of[b]];
      if (!seen[token_of[b]]) range.begin = begin;
      seen[token_of[b]] = true;
      range.end = text.size();
    }
    first = end_byte;
    begin = text.size();
  };
  for (std::size_t b = 0; b < bytes.size(); ++b) {
    if (utf8.pending() != 0 && !utf8.continues(bytes[b])) {
      utf8.finish(text);
      finished(b);
    }
    utf8.push(std::string_view(bytes).substr(b, 1), text);
    if (utf8.pending() == 0) finished(b + 1);
  }
  utf8.finish(text);
  finished(bytes.size());
  // Tokens without bytes: nothing, wherever they stand.
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (!seen[i]) ranges[i] = {0, 0};
  }
  return ranges;
}

}  // namespace

TEST_CASE("text ranges: tokens that share a character share its bytes") {
  const BytesTokenizer bytes({"a", "\xC3", "\xA9", "b\xE4", "\xB8",
                              "\xAD"
                              "c",
                              "", "\xFF"});
  const auto both = [&](const std::vector<TokenId>& ids, const Ranges& expected) {
    CHECK(ranges_of(bytes, ids) == expected);
    CHECK(ranges_of(DecodeOnly(bytes), ids) == expected);
  };
  both({0, 1, 2, 0}, {{0, 1}, {1, 3}, {1, 3}, {3, 4}});
  both({3, 4, 5}, {{0, 4}, {1, 4}, {1, 5}});
  both({1, 0}, {{0, 3}, {3, 4}});  // broken off: U+FFFD is the first one's
  both({1, 1, 2}, {{0, 3}, {3, 5}, {3, 5}});
  both({0, 4}, {{0, 1}, {1, 4}});  // cut off at the end, too
  both({7, 7, 0}, {{0, 3}, {3, 6}, {6, 7}});
  CHECK(ranges_of(bytes, {0, 6, 1, 6, 2}) == Ranges{{0, 1}, {1, 1}, {1, 3}, {1, 1}, {1, 3}});
  CHECK(ranges_of(bytes, {0, 99, -1, 0}) == Ranges{{0, 1}, {1, 1}, {1, 1}, {1, 2}});
}

TEST_CASE("text ranges: against the rule spelled out, over random tokens") {
  const std::vector<std::string> parts = {"a",    "\xC3",     "\xA9",     "é",    "\xE4",        "\xB8",
                                          "\xAD", "\xF0\x9F", "\x98\x80", "\xFF", "\xEF\xBF\xBD"};
  for (unsigned seed = 0; seed < 500; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::vector<std::string> tokens;
    for (int i = 0; i < 8; ++i) {
      std::string token;
      for (std::size_t n = random() % 4; n > 0; --n) token += parts[random() % parts.size()];
      tokens.push_back(token);
    }
    const BytesTokenizer bytes(tokens);
    std::vector<TokenId> ids(random() % 25);
    for (TokenId& id : ids) id = static_cast<TokenId>(random() % 8);
    Ranges ranges = ranges_of(bytes, ids);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (bytes.token_bytes(ids[i]).empty()) {
        CHECK(ranges[i].begin == ranges[i].end);
        ranges[i] = {0, 0};
      }
    }
    CHECK(ranges == naive_ranges(bytes, ids));
  }
}

TEST_CASE("text ranges: they end where the text ends") {
  const BytesTokenizer bytes({"ab", "cd", "\xC3", "\xA9"});
  CHECK(ranges_of(bytes, {0, 1, 0}, {.stop = {"c"}}) == Ranges{{0, 2}, {2, 2}});
  CHECK(ranges_of(bytes, {0, 1, 0}, {.stop = {"bc"}}) == Ranges{{0, 1}, {1, 1}});
  CHECK(ranges_of(bytes, {0, 1, 0}, {.stop = {"bc"}, .include_stop = true}) == Ranges{{0, 2}, {2, 3}});
  // Behind a prompt they count from the answer's beginning; a character that began in the prompt is the answer's.
  CHECK(ranges_of(bytes, {3, 0}, {}, {0, 2}) == Ranges{{0, 2}, {2, 4}});
  CHECK(ranges_of(DecodeOnly(bytes), {3, 0}, {}, {0, 2}) == Ranges{{0, 2}, {2, 4}});
  CHECK(ranges_of(bytes, {1, 0}, {}, {0, 2}) == Ranges{{0, 2}, {2, 4}});
  CHECK(ranges_of(DecodeOnly(bytes), {1, 0}, {}, {0, 2}) == Ranges{{0, 2}, {2, 4}});
}

TEST_CASE("text ranges: behind a prompt that ends inside a character, on both paths") {
  const BytesTokenizer bytes({"x", "\xC3", "\xA9", "y", "\xE4", "\xB8", "\xAD"});
  const auto both = [&](const std::vector<TokenId>& prompt, const std::vector<TokenId>& ids, const Ranges& expected) {
    CHECK(ranges_of(bytes, ids, {}, prompt) == expected);
    CHECK(ranges_of(DecodeOnly(bytes), ids, {}, prompt) == expected);
  };
  both({4}, {0, 1, 2, 3}, {{0, 1}, {1, 3}, {1, 3}, {3, 4}});  // broken off: its U+FFFD is the prompt's
  both({4}, {5, 6, 3}, {{0, 3}, {0, 3}, {3, 4}});             // completed: it is ours
  both({4}, {5, 0, 3}, {{0, 0}, {0, 1}, {1, 2}});             // gone on with, and broken off
  both({1, 4}, {5, 6}, {{0, 3}, {0, 3}});
}

TEST_CASE("text stream: nothing can be pushed behind the end") {
  const BytesTokenizer bytes({"a"});
  TextStream stream(bytes);
  static_cast<void>(stream.push(0));
  static_cast<void>(stream.finish());
  CHECK_THROWS(static_cast<void>(stream.push(0)));
}

TEST_CASE("text stream: several ids at once end at the first stop and say how many were used") {
  const BytesTokenizer bytes({"a", "b", "c", "\xC3", "\xA9"});
  TextStream stream(bytes, {.stop = {"bc"}});
  const std::vector<TokenId> first = {0, 3, 4, 1};
  auto pushed = stream.push(first);
  CHECK(pushed.text == "aé");
  CHECK(pushed.used == 4);
  const std::vector<TokenId> second = {0, 1, 2, 0, 0};
  pushed = stream.push(second);
  CHECK(pushed.text == "ba");
  CHECK(pushed.used == 3);
  CHECK(stream.matched() == "bc");
  CHECK(stream.ranges().size() == 7);
  CHECK_THROWS(static_cast<void>(stream.push(first)));

  TextStream empty(bytes);
  CHECK(empty.push(std::span<const TokenId>()).used == 0);
}

TEST_CASE("text ranges: an id that a tokenizer refuses stands where it came, and has no text") {
  const BytesTokenizer bytes({"ab", "c"});
  CHECK(ranges_of(bytes, {0, -1, 1, 7, 0}) == Ranges{{0, 2}, {2, 2}, {2, 3}, {3, 3}, {3, 5}});
  CHECK(ranges_of(DecodeOnly(bytes), {0, -1, 1, -7, 0}) == Ranges{{0, 2}, {2, 2}, {2, 3}, {3, 3}, {3, 5}});
}
