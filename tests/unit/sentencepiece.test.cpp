// SPDX-License-Identifier: Apache-2.0
#include "spm.hpp"

#include <map>
#include <optional>
#include <random>
#include <string>

#include <doctest/doctest.h>

#include "support/vocabulary_builder.hpp"

using engine::Tokenizer;
using namespace test_support;

TEST_CASE("SentencePiece joins the pieces of the best score, the leftmost of equals first") {
  Vocabulary vocabulary = sentencepiece_start();
  for (const char* const text : {"a", "b", "c", "\xE2\x96\x81"}) vocabulary.add(text, normal, -10.0F);
  const std::int32_t bc = vocabulary.add("bc", normal, -1.0F);
  const std::int32_t ab = vocabulary.add("ab", normal, -2.0F);
  const std::int32_t aa = vocabulary.add("aa", normal, -3.0F);
  const std::int32_t a = 259;
  const std::int32_t space = 262;
  const Tokenizer tokenizer = open(vocabulary.sentencepiece());
  CHECK(tokenizer.encode("abc", {.add_special = false}) == Ids{space, a, bc});
  CHECK(tokenizer.encode("aab", {.add_special = false}) == Ids{space, a, ab});
  CHECK(tokenizer.encode("aaa", {.add_special = false}) == Ids{space, aa, a});
}

TEST_CASE("SentencePiece joins as in the naive algorithm, for random vocabularies and texts") {
  std::mt19937 random(4);
  for (int round = 0; round < 60; ++round) {
    Vocabulary vocabulary = sentencepiece_start();
    std::map<std::string, double> scores;
    Words pieces = {"a", "b", "\xC3\xA9", " "};
    for (const std::string& piece : pieces) {
      vocabulary.add(piece == " " ? "\xE2\x96\x81" : piece);
      scores[piece] = 0;
    }
    for (std::size_t i = random() % 40; i > 0; --i) {
      const std::string text = pieces[random() % pieces.size()] + pieces[random() % pieces.size()];
      const auto score = -static_cast<float>(random() % 8);
      if (text.size() > 12 || !scores.emplace(text, static_cast<double>(score)).second) continue;
      std::string written;
      for (const char c : text) written += c == ' ' ? std::string("\xE2\x96\x81") : std::string(1, c);
      vocabulary.add(written, normal, score);
      pieces.push_back(text);
    }
    const Tokenizer tokenizer = open(vocabulary.sentencepiece().put("tokenizer.ggml.add_space_prefix", false));
    for (int i = 0; i < 50; ++i) {
      std::string text;
      for (std::size_t n = 1 + random() % 80; n > 0; --n) text += Words{"a", "b", "\xC3\xA9", " "}[random() % 4];
      const auto rank = [&](const std::string& left, const std::string& right) -> std::optional<double> {
        const auto at = scores.find(left + right);
        return at == scores.end() ? std::nullopt : std::optional(-at->second);
      };
      Words got;
      for (const std::int32_t id : tokenizer.encode(text, {.add_special = false})) got.emplace_back(tokenizer.token_bytes(id));
      CAPTURE(text);
      CHECK(got == joined_naively(characters(text), rank));
    }
  }
}

TEST_CASE("SentencePiece falls back to byte tokens, then to the unknown token, and gives any bytes back") {
  Vocabulary vocabulary = sentencepiece_start();
  vocabulary.add("\xE2\x96\x81");
  const Tokenizer tokenizer = open(vocabulary.sentencepiece());
  CHECK(tokenizer.strips_leading_space());
  CHECK(tokenizer.encode("\xC3\xA9") == Ids{1, 259, 3 + 0xC3, 3 + 0xA9});
  CHECK(tokenizer.token_bytes(3 + 0xA9) == "\xA9");
  std::mt19937 random(5);
  for (int i = 0; i < 200; ++i) {
    const std::string text = i % 2 == 0 ? random_bytes(random, random() % 100) : random_unicode(random, random() % 50);
    CHECK(tokenizer.decode(tokenizer.encode(text, {.parse_special = false})) == text);
  }
  Vocabulary without;
  without.add("<unk>", unknown);
  without.add("<s>", control);
  without.add("</s>", control);
  without.add("\xE2\x96\x81");
  CHECK(open(without.sentencepiece()).encode("\xC3\xA9", {.add_special = false}) == Ids{3, 0, 0});
}

TEST_CASE("SentencePiece puts a space before the text and after special tokens, and decoding drops one at the start") {
  Vocabulary vocabulary = sentencepiece_start();
  const std::int32_t space = vocabulary.add("\xE2\x96\x81");
  const std::int32_t a = vocabulary.add("a");
  const Tokenizer tokenizer = open(vocabulary.sentencepiece());
  CHECK(tokenizer.encode("aa</s>a") == Ids{1, space, a, a, 2, space, a});
  CHECK(tokenizer.encode("") == Ids{1});
  CHECK(tokenizer.decode(Ids{1, space, a, space, a}) == "a a");
  CHECK(tokenizer.decode(Ids{space, space, a}) == " a");
  CHECK(tokenizer.decode(Ids{a, space}) == "a ");
  CHECK(tokenizer.encode("<0x41><unk>", {.parse_special = false}).size() == 13);

  const Tokenizer plain = open(vocabulary.sentencepiece().put("tokenizer.ggml.add_space_prefix", false));
  CHECK_FALSE(plain.strips_leading_space());
  CHECK(plain.encode("a a") == Ids{1, a, space, a});
  CHECK(plain.decode(Ids{space, a}) == " a");

  const Tokenizer tidy = open(vocabulary.sentencepiece().put("tokenizer.ggml.remove_extra_whitespaces", true));
  CHECK(tidy.encode("  a   a  ") == Ids{1, space, a, space, a});
}

TEST_CASE("special tokens of Phi-3 take the white space after them along") {
  Vocabulary vocabulary = sentencepiece_start();
  const std::int32_t space = vocabulary.add("\xE2\x96\x81");
  const std::int32_t a = vocabulary.add("a");
  const std::int32_t user = vocabulary.add("<|user|>", control);
  CHECK(open(vocabulary.sentencepiece().string("general.name", "Phi-3 mini")).encode("<|user|> \n a") ==
        Ids{1, user, space, a});
  CHECK(open(vocabulary.sentencepiece()).encode("<|user|> a") == Ids{1, user, space, space, a});
}
