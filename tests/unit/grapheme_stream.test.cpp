// SPDX-License-Identifier: Apache-2.0
#include "support/bytes_tokenizer.hpp"

#include <tinyllm/text/text_stream.hpp>

#include <doctest/doctest.h>
#include <unicode/brkiter.h>
#include <unicode/unistr.h>

#include <random>

using namespace tinyllm;
using test_support::BytesTokenizer;

namespace {

const std::string family = "\U0001F469\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466";

// Byte offsets between grapheme clusters, by ICU's other interface.
std::vector<std::size_t> boundaries(const std::string& text) {
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<icu::BreakIterator> breaks(icu::BreakIterator::createCharacterInstance(icu::Locale::getRoot(), status));
  const icu::UnicodeString wide = icu::UnicodeString::fromUTF8(text);
  breaks->setText(wide);
  std::vector<std::size_t> out;
  for (std::int32_t at = breaks->first(); at != icu::BreakIterator::DONE; at = breaks->next()) {
    std::string before;
    wide.tempSubString(0, at).toUTF8String(before);
    out.push_back(before.size());
  }
  return out;
}

}  // namespace

TEST_CASE("graphemes: a cluster goes out when something follows it, and not before") {
  GraphemeStream stream;
  std::string out;
  for (const char* part : {"a", "\u0301", "b"}) stream.push(part, out);
  CHECK(out == "a\u0301");
  CHECK(stream.held() == "b");
  stream.push(family.substr(0, 7), out);
  CHECK(out == "a\u0301b");
  stream.push(family.substr(7), out);
  CHECK(out == "a\u0301b");
  stream.push("!", out);
  CHECK(out == "a\u0301b" + family);
  stream.flush(out);
  CHECK(out == "a\u0301b" + family + "!");
  CHECK(stream.held().empty());
}

TEST_CASE("graphemes: every piece ends between clusters of the whole text") {
  const std::vector<std::string> parts = {"a",          "e\u0301", "\u0301",     "\r",         "\n",           family,
                                          "\U0001F469", "\u200D",  "\U0001F1EB", "\U0001F1F7", "\u0E01\u0E33", "\u1100\u1161",
                                          "\u11A8",     "中"};
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    GraphemeStream stream;
    std::string all;
    std::string out;
    std::vector<std::size_t> ends;
    for (int i = 0; i < 20; ++i) {
      const std::string& part = parts[random() % parts.size()];
      all += part;
      stream.push(part, out);
      REQUIRE(out.size() + stream.held().size() == all.size());
      ends.push_back(out.size());
    }
    stream.flush(out);
    CHECK(out == all);
    const std::vector<std::size_t> allowed = boundaries(all);
    for (const std::size_t end : ends) CHECK(std::find(allowed.begin(), allowed.end(), end) != allowed.end());
  }
}

TEST_CASE("graphemes: a cluster without end is not held for ever") {
  GraphemeStream stream;
  std::string out;
  stream.push("a", out);
  for (int i = 0; i < 1000; ++i) {
    stream.push("\u0301", out);
    CHECK(stream.held().size() <= GraphemeStream::most_held);
  }
  CHECK(out.size() + stream.held().size() == 1 + 2000);
}

TEST_CASE("graphemes: copies are independent") {
  GraphemeStream first;
  std::string out;
  first.push("a", out);
  GraphemeStream second = first;
  std::string other;
  second.push("x", other);
  CHECK(other == "a");
  first.push("\u0301", out);
  CHECK(first.held() == "a\u0301");
  second = first;
  CHECK(second.held() == "a\u0301");
}

TEST_CASE("text stream: whole graphemes behind the stop strings") {
  const BytesTokenizer bytes = BytesTokenizer::of_all_bytes();
  TextStream stream(bytes, {.stop = {"END"}, .clusters = Clusters::whole});
  std::vector<std::string> pieces;
  for (const char c : "a" + family + "b" + family + "END") {
    const std::string_view piece = stream.push(static_cast<TokenId>(static_cast<unsigned char>(c)));
    if (!piece.empty()) pieces.emplace_back(piece);
    if (stream.stopped()) break;
  }
  CHECK(pieces == std::vector<std::string>{"a", family, "b", family});
  CHECK(stream.matched() == "END");
  CHECK(stream.finish() == "");
}

TEST_CASE("graphemes: the longest cluster that waits has exactly as many bytes as the limit says") {
  GraphemeStream stream;
  std::string out;
  stream.push("\u00E9", out);
  for (int i = 0; i < 63; ++i) stream.push("\u0301", out);
  CHECK(GraphemeStream::most_held == 128);
  CHECK(stream.held().size() == 128);
  CHECK(out.empty());
  stream.push("\u0301", out);
  CHECK(out.size() == 130);
  CHECK(stream.held().empty());
}

TEST_CASE("text stream: the last whole grapheme comes at the end, without any stop") {
  const BytesTokenizer bytes({"a", "e", "\u0301"});
  TextStream stream(bytes, {.clusters = Clusters::whole});
  CHECK(stream.push(0) == "");
  CHECK(stream.push(1) == "a");
  CHECK(stream.push(2) == "");
  CHECK(stream.finish() == "e\u0301");
  CHECK(stream.ranges() == std::vector<TextRange>{{0, 1}, {1, 2}, {2, 4}});
}
