// SPDX-License-Identifier: Apache-2.0
#include <tinyllm/text/utf8.hpp>

#include <doctest/doctest.h>
#include <unicode/ucnv.h>

#include <random>
#include <string>
#include <vector>

using tinyllm::Utf8Stream;

namespace {

const std::string fffd(tinyllm::replacement_character);

std::string streamed(const std::string& bytes, const std::vector<std::size_t>& cuts = {}) {
  Utf8Stream stream;
  std::string text;
  std::size_t from = 0;
  for (const std::size_t cut : cuts) {
    stream.push(std::string_view(bytes).substr(from, cut - from), text);
    from = cut;
  }
  stream.push(std::string_view(bytes).substr(from), text);
  stream.finish(text);
  return text;
}

// ICU's converter replaces maximal subparts too.
std::string by_icu(const std::string& bytes) {
  UErrorCode status = U_ZERO_ERROR;
  UConverter* utf8 = ucnv_open("UTF-8", &status);
  std::u16string wide(bytes.size() * 2 + 1, u'\0');
  const std::int32_t n = ucnv_toUChars(utf8, wide.data(), static_cast<std::int32_t>(wide.size()), bytes.data(),
                                       static_cast<std::int32_t>(bytes.size()), &status);
  std::string out(static_cast<std::size_t>(n) * 4 + 1, '\0');
  const std::int32_t m = ucnv_fromUChars(utf8, out.data(), static_cast<std::int32_t>(out.size()), wide.data(), n, &status);
  ucnv_close(utf8);
  REQUIRE(U_SUCCESS(status));
  out.resize(static_cast<std::size_t>(m));
  return out;
}

// Bytes in which leads, continuations and bytes that never occur meet often.
std::string random_bytes(std::mt19937& random, std::size_t most) {
  static const std::vector<std::string> parts = {"a",    "\x80",         "\xBF", "\xC2", "\xC3\xA9", "\xE0",
                                                 "\xA0", "\xE4\xB8\xAD", "\xED", "\x9F", "\xF0",     "\x90",
                                                 "\xF4", "\x8F",         "\xF5", "\xC0", "\xFF",     "\xEF\xBF\xBD"};
  std::string bytes;
  for (std::size_t n = random() % most; n > 0; --n) bytes += parts[random() % parts.size()];
  return bytes;
}

}  // namespace

TEST_CASE("utf8: ill-formed bytes become one U+FFFD for each maximal subpart") {
  CHECK(streamed("\xE4\xB8") == fffd);
  CHECK(streamed("\xC0\xAF") == fffd + fffd);
  CHECK(streamed("\xED\xA0\x80") == fffd + fffd + fffd);
  CHECK(streamed("\xF4\x90\x80\x80") == fffd + fffd + fffd + fffd);
  CHECK(streamed("\xF0\x9F\x98x") == fffd + "x");
  CHECK(streamed(std::string("a\0b", 3)) == std::string("a\0b", 3));
  // The Unicode Standard, Table 3-11.
  CHECK(streamed("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41") == fffd + fffd + fffd + fffd + "A");
}

TEST_CASE("utf8: every code point passes, and every string of three bytes is what ICU makes of it") {
  std::string all;
  for (std::uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    if (c < 0x80) {
      all += static_cast<char>(c);
    } else if (c < 0x800) {
      all += static_cast<char>(0xC0 | (c >> 6));
      all += static_cast<char>(0x80 | (c & 0x3F));
    } else if (c < 0x10000) {
      all += static_cast<char>(0xE0 | (c >> 12));
      all += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
      all += static_cast<char>(0x80 | (c & 0x3F));
    } else {
      all += static_cast<char>(0xF0 | (c >> 18));
      all += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
      all += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
      all += static_cast<char>(0x80 | (c & 0x3F));
    }
  }
  CHECK(streamed(all) == all);

  // All pairs of bytes, a third that varies with them; one conversion for them all, divided by line ends.
  std::string triples;
  for (int a = 0; a < 256; ++a) {
    for (int b = 0; b < 256; ++b) {
      for (const int c : {0x41, 0x80, 0x9F, 0xA0, 0xBF, 0xE2}) {
        triples += static_cast<char>(a);
        triples += static_cast<char>(b);
        triples += static_cast<char>(c);
        triples += '\n';
      }
    }
  }
  CHECK(streamed(triples) == by_icu(triples));
}

TEST_CASE("utf8: the cuts between pushes change nothing") {
  for (unsigned seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const std::string bytes = random_bytes(random, 30);
    const std::string expected = by_icu(bytes);
    std::vector<std::size_t> cuts;
    for (std::size_t i = 1; i < bytes.size(); ++i) {
      if (random() % 2 == 0) cuts.push_back(i);
    }
    CHECK(streamed(bytes) == expected);
    CHECK(streamed(bytes, cuts) == expected);
  }
}

TEST_CASE("utf8: at most three bytes wait, and trailing U+FFFDs are counted") {
  Utf8Stream stream;
  std::string text;
  stream.push("\xF0\x9F\x98", text);
  CHECK(stream.pending() == 3);
  CHECK(stream.continues('\x80'));
  CHECK_FALSE(stream.continues('a'));
  CHECK(text.empty());
  stream.push("\x80", text);
  CHECK(stream.pending() == 0);
  CHECK_FALSE(stream.continues('\x80'));
  CHECK(text == "😀");
  CHECK(tinyllm::trailing_replacements("") == 0);
  CHECK(tinyllm::trailing_replacements(fffd + "a" + fffd + fffd) == 2);
  CHECK(tinyllm::trailing_replacements("\xBF\xBD") == 0);
}
