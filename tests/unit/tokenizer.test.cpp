// SPDX-License-Identifier: Apache-2.0
#include "tokenizer.hpp"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include <doctest/doctest.h>

#include "support/vocabulary_builder.hpp"

using engine::FileError;
using engine::Gguf;
using engine::Tokenizer;
using namespace test_support;

TEST_CASE("byte-level tokens are written with GPT-2's characters and give the bytes back") {
  CHECK(mapped(" ") == "\xC4\xA0");
  CHECK(mapped("\n") == "\xC4\x8A");
  CHECK(mapped("!~") == "!~");
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(static_cast<unsigned char>(byte));
  std::string back;
  CHECK(engine::append_mapped_bytes(back, mapped(all)));
  CHECK(back == all);
  CHECK_FALSE(engine::append_mapped_bytes(back, "a\xE4\xB8\xAD"));
  CHECK_FALSE(engine::append_mapped_bytes(back, " "));
  CHECK(back == all);
}

TEST_CASE("decoding what was encoded gives back any bytes, under every rule") {
  std::mt19937 random(2);
  Vocabulary vocabulary = bytes_only();
  for (const char* const pair : {"th", "he", "in", " t", "  ", "\xC3\xA9", "\xE4\xB8", "\n\n", "12"}) {
    vocabulary.merge(std::string(pair, 1), std::string(pair + 1));
  }
  vocabulary.merge("\xE4\xB8", "\xAD");
  for (const std::string_view rule : {"gpt-2", "smollm", "llama-bpe", "qwen2", "default"}) {
    const Tokenizer tokenizer = open(vocabulary.byte_level(rule));
    for (int i = 0; i < 200; ++i) {
      const std::string text = i % 2 == 0 ? random_bytes(random, random() % 200) : random_unicode(random, random() % 100);
      CHECK(tokenizer.decode(tokenizer.encode(text)) == text);
    }
  }
}

TEST_CASE("byte pairs join in the order of the merge list, the leftmost of equal pairs first") {
  Vocabulary vocabulary = bytes_only();
  const std::int32_t bc = vocabulary.merge("b", "c");
  const std::int32_t ab = vocabulary.merge("a", "b");
  const std::int32_t abc = vocabulary.merge("ab", "c");
  const std::int32_t aa = vocabulary.merge("a", "a");
  const Tokenizer tokenizer = open(vocabulary.byte_level("gpt-2"));
  CHECK(tokenizer.encode("abc") == Ids{'a', bc});
  CHECK(tokenizer.encode("abd") == Ids{ab, 'd'});
  CHECK(tokenizer.encode("aaa") == Ids{aa, 'a'});
  CHECK(abc == 258);
  CHECK(tokenizer.encode("") == Ids{});
}

TEST_CASE("byte pairs join as in the naive algorithm, for random merge lists and words") {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    Vocabulary vocabulary = bytes_only();
    Words pieces = {"a", "b", "c", "d"};
    std::map<std::pair<std::string, std::string>, double> ranks;
    const std::size_t merges = 1 + random() % 40;
    for (std::size_t i = 0; i < merges; ++i) {
      const std::string left = pieces[random() % pieces.size()];
      const std::string right = pieces[random() % pieces.size()];
      if (left.size() + right.size() > 12) continue;
      ranks.emplace(std::pair(left, right), static_cast<double>(vocabulary.merges.size()));
      vocabulary.merge(left, right);
      pieces.push_back(left + right);
    }
    const Tokenizer tokenizer = open(vocabulary.byte_level("gpt-2"));
    for (int i = 0; i < 50; ++i) {
      std::string word;
      for (std::size_t n = 1 + random() % 80; n > 0; --n) word += static_cast<char>('a' + random() % 4);
      Ids expected;
      const auto rank = [&](const std::string& left, const std::string& right) -> std::optional<double> {
        const auto at = ranks.find({left, right});
        return at == ranks.end() ? std::nullopt : std::optional(at->second);
      };
      for (const std::string& piece : joined_naively(characters(word), rank)) {
        expected.push_back(*tokenizer.token_to_id(mapped(piece)));
      }
      CAPTURE(word);
      CHECK(tokenizer.encode(word) == expected);
    }
  }
}

TEST_CASE("a merge whose result is no token comes out as the tokens of its bytes") {
  Vocabulary vocabulary = bytes_only();
  vocabulary.merges = {"a b", "ab c"};
  const std::int32_t abc = vocabulary.add("abc");
  const Tokenizer tokenizer = open(vocabulary.byte_level("gpt-2"));
  CHECK(tokenizer.vocab_size() == 257);
  CHECK(tokenizer.encode("abc") == Ids{abc});
  CHECK(tokenizer.encode("abd") == Ids{'a', 'b', 'd'});
  CHECK(tokenizer.token_bytes(257).empty());
}

TEST_CASE("bytes without a token are left out, and a merge without two pieces is refused") {
  Vocabulary vocabulary;
  vocabulary.add("a");
  const std::int32_t b = vocabulary.add("b");
  CHECK(open(vocabulary.byte_level("gpt-2"))
            .encode("a\xFF"
                    "b") == Ids{0, b});
  for (const char* const merge : {"ab", "ab ", "a", ""}) {
    vocabulary.merges = {merge};
    CHECK_THROWS_AS(open(vocabulary.byte_level("gpt-2")), FileError);
  }
}

TEST_CASE("llama-bpe takes a whole word that is a token, whatever the merges say, and gpt-2 does not") {
  Vocabulary vocabulary = bytes_only();
  const std::int32_t hello = vocabulary.add("hello");
  const std::int32_t secret = vocabulary.add("secret", control);
  CHECK(open(vocabulary.byte_level("llama-bpe")).encode("hello") == Ids{hello});
  CHECK(open(vocabulary.byte_level("gpt-2")).encode("hello") == Ids{'h', 'e', 'l', 'l', 'o'});
  CHECK(open(vocabulary.byte_level("llama-bpe")).encode("secret", {.parse_special = false}) ==
        Ids{'s', 'e', 'c', 'r', 'e', 't'});
  CHECK(open(vocabulary.byte_level("llama-bpe")).encode("secret") == Ids{secret});
}

TEST_CASE("control tokens are recognised in text unless that is not wanted, and are never shown") {
  Vocabulary vocabulary = bytes_only();
  const std::int32_t end = vocabulary.add("<|end|>", control);
  const Tokenizer tokenizer = open(vocabulary.byte_level("gpt-2"));
  CHECK(tokenizer.encode("a<|end|><|end|>b<|end") == Ids{'a', end, end, 'b', '<', '|', 'e', 'n', 'd'});
  CHECK(tokenizer.encode("<|end|>", {.parse_special = false}) == Ids{'<', '|', 'e', 'n', 'd', '|', '>'});
  CHECK(tokenizer.token_bytes(end).empty());
  CHECK(tokenizer.decode(tokenizer.encode("a<|end|>b")) == "ab");
  CHECK(tokenizer.token_to_id("<|end|>") == end);
}

TEST_CASE("of the special tokens that match at one place the longest is taken, and the leftmost before any other") {
  Vocabulary vocabulary = bytes_only();
  const std::int32_t x = vocabulary.add("<x", control);
  const std::int32_t xyz = vocabulary.add("<xyz>", control);
  const std::int32_t inner = vocabulary.add("yz>long", control);
  const Tokenizer tokenizer = open(vocabulary.byte_level("gpt-2"));
  CHECK(tokenizer.encode("<xyz>") == Ids{xyz});
  CHECK(tokenizer.encode("<xy") == Ids{x, 'y'});
  CHECK(tokenizer.encode("<xyz>long") == Ids{xyz, 'l', 'o', 'n', 'g'});
  CHECK(tokenizer.encode("ayz>long") == Ids{'a', inner});
}

TEST_CASE("user-defined tokens are always recognised and shown as they are written") {
  Vocabulary vocabulary = bytes_only();
  const std::int32_t spaces = vocabulary.add("   ", user_defined);
  const std::int32_t accent = vocabulary.add("\xC3\xA9t\xC3\xA9", user_defined);
  const std::int32_t mapped_text = vocabulary.add("\xC4\xA0x", user_defined);
  const Tokenizer tokenizer = open(vocabulary.byte_level("gpt-2"));
  CHECK(tokenizer.encode("a   \xC3\xA9t\xC3\xA9", {.parse_special = false}) == Ids{'a', spaces, accent});
  CHECK(tokenizer.token_bytes(spaces) == "   ");
  CHECK(tokenizer.token_bytes(accent) == "\xC3\xA9t\xC3\xA9");
  CHECK(tokenizer.token_bytes(mapped_text) == "\xC4\xA0x");
  CHECK(tokenizer.encode(" x") == Ids{' ', 'x'});
}

TEST_CASE("a token that is not byte-mapped stays verbatim") {
  Vocabulary vocabulary = bytes_only();
  const std::int32_t verbatim = vocabulary.add("\xE4\xB8\xAD \xC4\xA0");
  CHECK(open(vocabulary.byte_level("gpt-2")).token_bytes(verbatim) == "\xE4\xB8\xAD \xC4\xA0");
}

TEST_CASE("ids outside the vocabulary have no bytes and add nothing to the text") {
  const Tokenizer tokenizer = open(bytes_only().byte_level("gpt-2"));
  CHECK(tokenizer.vocab_size() == 256);
  CHECK(tokenizer.token_bytes(-1).empty());
  CHECK(tokenizer.token_bytes(256).empty());
  CHECK(tokenizer.token_bytes(2147483647).empty());
  CHECK(tokenizer.decode(Ids{'a', -5, 'b', 70000}) == "ab");
}

TEST_CASE("the begin and end tokens are added as the file says, and by the model's habit where it says nothing") {
  Vocabulary vocabulary = bytes_only();
  const auto bos = static_cast<std::uint32_t>(vocabulary.add("<bos>", control));
  const auto eos = static_cast<std::uint32_t>(vocabulary.add("<eos>", control));
  const auto b = static_cast<std::int32_t>(bos);
  const auto e = static_cast<std::int32_t>(eos);
  const auto with = [&](std::string_view rule) {
    GgufWriter writer = vocabulary.byte_level(rule);
    writer.put("tokenizer.ggml.bos_token_id", bos).put("tokenizer.ggml.eos_token_id", eos);
    return writer;
  };
  CHECK(open(with("gpt-2")).encode("a") == Ids{'a'});
  CHECK(open(with("llama-bpe")).encode("a") == Ids{b, 'a'});
  CHECK(open(with("llama-bpe")).encode("") == Ids{b});
  CHECK(open(with("llama-bpe")).encode("a", {.add_special = false}) == Ids{'a'});
  CHECK(open(with("llama-bpe").put("tokenizer.ggml.add_bos_token", false)).encode("a") == Ids{'a'});
  CHECK(open(with("gpt-2").put("tokenizer.ggml.add_bos_token", true).put("tokenizer.ggml.add_eos_token", true)).encode("a") ==
        Ids{b, 'a', e});
  CHECK(open(vocabulary.byte_level("llama-bpe")).encode("a") == Ids{'a'});
}

TEST_CASE("every end token that the file names ends an answer, and well-known ones that are control tokens") {
  Vocabulary vocabulary = bytes_only();
  const std::int32_t eos = vocabulary.add("<my eos>", control);
  const std::int32_t eot = vocabulary.add("<my eot>", control);
  const std::int32_t eom = vocabulary.add("<my eom>", control);
  const std::int32_t im_end = vocabulary.add("<|im_end|>", control);
  vocabulary.add("<end_of_turn>", normal);
  GgufWriter writer = vocabulary.byte_level("gpt-2");
  writer.put("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(eos))
      .put("tokenizer.ggml.eot_token_id", static_cast<std::uint32_t>(eot))
      .put("tokenizer.ggml.eom_token_id", static_cast<std::uint32_t>(eom));
  CHECK(open(writer).eos_ids() == Ids{eos, eot, eom, im_end});
  GgufWriter outside = vocabulary.byte_level("gpt-2");
  outside.put("tokenizer.ggml.eos_token_id", std::uint32_t{100000});
  CHECK(open(outside).eos_ids() == Ids{im_end});
}

TEST_CASE("a vocabulary that is missing, too short or of another kind is refused") {
  CHECK_THROWS_WITH_AS(open(GgufWriter()), "GGUF data: has no tokenizer (no tokenizer.ggml.model)", FileError);
  CHECK_THROWS_WITH_AS(open(GgufWriter().string("tokenizer.ggml.model", "bert")),
                       "GGUF data: the tokenizer model 'bert' is not supported (gpt2 and llama are)", FileError);
  CHECK_THROWS_AS(open(GgufWriter().string("tokenizer.ggml.model", "gpt2")), FileError);
  Vocabulary vocabulary = bytes_only();
  vocabulary.types.pop_back();
  CHECK_THROWS_AS(open(vocabulary.byte_level("gpt-2")), FileError);
  Vocabulary spm = sentencepiece_start();
  spm.scores.pop_back();
  CHECK_THROWS_AS(open(spm.sentencepiece()), FileError);
}

TEST_CASE("a tokenizer needs nothing of its file afterwards and can be moved") {
  Vocabulary vocabulary = bytes_only();
  const std::int32_t ab = vocabulary.merge("a", "b");
  auto bytes = std::make_unique<Bytes>(vocabulary.byte_level("gpt-2").bytes());
  auto file = std::make_unique<Gguf>(std::span<const std::byte>(*bytes));
  Tokenizer first(*file);
  file.reset();
  std::fill(bytes->begin(), bytes->end(), std::byte{0});
  bytes.reset();
  const std::string_view piece = first.token_bytes(ab);
  const Tokenizer second = std::move(first);
  CHECK(piece == "ab");
  CHECK(second.encode("ab") == Ids{ab});
}

TEST_CASE("a megabyte of anything is encoded in little time") {
  // Two of the rules get the whole; a quarter shows a quadratic cost as well.
  constexpr std::size_t size = std::size_t{1} << 20;
  std::mt19937 random(6);
  Vocabulary vocabulary = bytes_only();
  for (std::string run : {"a", " ", "\n", "'", "7"}) {
    for (; run.size() < 64; run += run) vocabulary.merge(run, run);
  }
  vocabulary.add("<|im_start|>", control);
  std::map<std::string, std::string> texts;
  for (const char c : {' ', 'a', '\n', '\'', '7', '\xFF'}) texts[std::string("only ") + c] = std::string(size, c);
  texts["spaces and a letter"] = std::string(size, ' ') + "x";
  for (const char* const part : {"\xE4\xB8\xAD", " \n", "e\xCC\x81", "<|im_", "\xF0\x9F\x98\x80"}) {
    std::string& text = texts[std::string("repeated ") + part];
    while (text.size() < size) text += part;
  }
  texts["mixed"] = random_unicode(random, size / 3);
  texts["random bytes"] = random_bytes(random, size);

  Vocabulary spm = sentencepiece_start();
  for (std::string run : {"a", "\xE2\x96\x81", "7"}) {
    for (float score = -1; run.size() <= 48; run += run) spm.add(run, normal, score -= 1);
  }
  std::map<std::string, Tokenizer> tokenizers;
  for (const std::string_view rule : {"gpt-2", "smollm", "llama-bpe", "qwen2", "default"}) {
    tokenizers.emplace(rule, open(vocabulary.byte_level(rule)));
  }
  tokenizers.emplace("sentencepiece", open(spm.sentencepiece()));
  for (const auto& [rule, tokenizer] : tokenizers) {
    for (const auto& [kind, whole] : texts) {
      const std::string text = rule == "smollm" || rule == "sentencepiece" ? whole : whole.substr(size * 3 / 4);
      const std::string title = rule + ", " + kind;
      CAPTURE(title);
      const auto start = std::chrono::steady_clock::now();
      const Ids ids = tokenizer.encode(text, {.parse_special = false});
      const auto seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      CHECK(seconds < 20);
      CHECK(tokenizer.decode(ids) == text);
    }
  }
}
