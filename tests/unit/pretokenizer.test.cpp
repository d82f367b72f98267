// SPDX-License-Identifier: Apache-2.0
#include "pretokenizer.hpp"

#include <random>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include "support/vocabulary_builder.hpp"

using engine::FileError;
using namespace test_support;

namespace {

Words split(std::string_view rule, std::string_view text) {
  Words words;
  for (const std::string_view word : engine::Pretokenizer(rule).split(text)) words.emplace_back(word);
  return words;
}

}  // namespace

TEST_CASE("the gpt-2 rule cuts contractions, words, numbers, symbols and spaces") {
  CHECK(split("gpt-2", "Hello  world's 123!\n\n x") == Words{"Hello", " ", " world", "'s", " 123", "!", "\n\n", " x"});
  CHECK(split("gpt-2", "they'LL a  ") == Words{"they", "'", "LL", " a", "  "});
  CHECK(split("gpt-2", "") == Words{});
  CHECK(split("gpt-2", "\nx") == Words{"\n", "x"});
  CHECK(split("gpt-2", "a\xC2\xA0\xC2\x85 \xE3\x80\x80z") == Words{"a", "\xC2\xA0\xC2\x85 ", "\xE3\x80\x80", "z"});
  CHECK(split("gpt-2", "\xE2\x85\xA7\xC2\xBD x\xCC\x81y") == Words{"\xE2\x85\xA7\xC2\xBD", " x", "\xCC\x81", "y"});
}

TEST_CASE("the smollm rule takes every digit by itself before the gpt-2 rule sees the pieces") {
  CHECK(split("smollm", "a 123  4b") == Words{"a", " ", "1", "2", "3", "  ", "4", "b"});
  CHECK(split("starcoder", "v2") == Words{"v", "2"});
}

TEST_CASE("the llama-bpe rule groups digits by three, joins a symbol to a word and keeps line ends with symbols") {
  CHECK(split("llama-bpe", "12345 Don'T (x)\n\n  y\r\n ") ==
        Words{"123", "45", " Don", "'T", " (", "x", ")\n\n", " ", " y", "\r\n", " "});
  CHECK(split("llama-bpe", "a'Llx'sz") == Words{"a", "'Ll", "x", "'s", "z"});
  CHECK(split("llama3", "\t\tx") == Words{"\t", "\tx"});
  CHECK(split("llama-v3", "9999") == Words{"999", "9"});
}

TEST_CASE("the qwen2 rule takes every digit by itself") { CHECK(split("qwen2", "12 a'll") == Words{"1", "2", " a", "'ll"}); }

TEST_CASE("the default rule cuts punctuation and groups of three digits out") {
  CHECK(split("default", "a+b $1234, x") == Words{"a", "+", "b", " ", "$", "123", "4", ",", " x"});
  CHECK(split("", "a+b") == Words{"a", "+", "b"});
}

TEST_CASE("a rule that is not known is refused by name") {
  CHECK_THROWS_WITH_AS(engine::Pretokenizer("gpt-5"), "the pre-tokenizer 'gpt-5' (tokenizer.ggml.pre) is not supported",
                       FileError);
  CHECK_THROWS_AS(open(bytes_only().byte_level("gpt-5")), FileError);
}

TEST_CASE("the words of every rule are the text, valid UTF-8 or not") {
  std::mt19937 random(1);
  for (const std::string_view rule : {"gpt-2", "smollm", "llama-bpe", "qwen2", "default"}) {
    const engine::Pretokenizer pretokenizer(rule);
    for (int i = 0; i < 200; ++i) {
      std::string text = i % 2 == 0 ? random_unicode(random, random() % 40) : random_bytes(random, random() % 40);
      if (i % 5 == 0) text += random_unicode(random, 5);
      std::string all;
      for (const std::string_view word : pretokenizer.split(text)) {
        CHECK_FALSE(word.empty());
        all += word;
      }
      CHECK(all == text);
    }
  }
}
