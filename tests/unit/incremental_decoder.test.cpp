// SPDX-License-Identifier: Apache-2.0
#include "support/bytes_tokenizer.hpp"

#include <tinyllm/text/incremental_decoder.hpp>

#include <doctest/doctest.h>

#include <random>

using namespace tinyllm;
using test_support::BytesTokenizer;
using test_support::DecodeOnly;

namespace {

const std::string fffd(replacement_character);

template <class Tokenizer>
std::vector<std::string> primed_pieces(const Tokenizer& tokenizer, const std::vector<TokenId>& prompt,
                                       const std::vector<TokenId>& ids) {
  IncrementalDecoder decoder(tokenizer);
  decoder.prime(prompt);
  std::vector<std::string> out;
  for (const TokenId id : ids) out.emplace_back(decoder.push(id));
  out.emplace_back(decoder.flush());
  return out;
}

// Like SentencePiece: the leading space of a sequence belongs to the tokens, not to the text.
struct SpaceStripping : BytesTokenizer {
  using BytesTokenizer::BytesTokenizer;
  bool strips_leading_space() const { return true; }
  std::string decode(const std::vector<TokenId>& ids) const {
    const std::string text = BytesTokenizer::decode(ids);
    return text.starts_with(' ') ? text.substr(1) : text;
  }
};

}  // namespace

TEST_CASE("decoder: eager replacement holds only the bytes of an incomplete character") {
  const BytesTokenizer bytes({"a", "\xC0\xAF", "\xE4\xB8", "\xAD", "\x80", "\xEF\xBF\xBD"});
  IncrementalDecoder decoder(bytes, Replacement::eager);
  CHECK(decoder.push(0) == "a");
  CHECK(decoder.push(1) == fffd + fffd);
  CHECK(decoder.push(2) == "");
  CHECK(decoder.push(3) == "中");
  CHECK(decoder.push(4) == fffd);
  CHECK(decoder.push(5) == fffd);
  CHECK(decoder.push(2) == "");
  CHECK(decoder.flush() == fffd);

  // Through decode(ids) alone, one U+FFFD at the end may be an incomplete character, so it waits.
  const DecodeOnly text_only(bytes);
  IncrementalDecoder window(text_only, Replacement::eager);
  CHECK(window.push(0) == "a");
  CHECK(window.push(1) == fffd);
  CHECK(window.push(2) == fffd);
  CHECK(window.push(3) == "中");
  CHECK(window.flush() == "");
}

TEST_CASE("decoder: ids outside the vocabulary give no text, no error, and are counted") {
  const BytesTokenizer bytes({"a", "\xC3", "\xA9"});
  IncrementalDecoder decoder(bytes);
  CHECK(decoder.push(-1) == "");
  CHECK(decoder.push(0) == "a");
  CHECK(decoder.push(3) == "");
  CHECK(decoder.push(1) == "");
  CHECK(decoder.push(std::numeric_limits<TokenId>::max()) == "");
  CHECK(decoder.push(2) == "é");  // an unknown id inside a character does not break it
  CHECK(decoder.unknown_ids() == 3);
  decoder.reset();
  CHECK(decoder.unknown_ids() == 0);

  // A tokenizer without vocab_size may say so by an exception.
  struct Strict {
    const BytesTokenizer* bytes;
    std::string decode(const std::vector<TokenId>& ids) const {
      for (const TokenId id : ids) static_cast<void>(bytes->token_bytes(id));  // throws std::out_of_range
      return bytes->decode(ids);
    }
  };
  const Strict strict{&bytes};
  IncrementalDecoder window(strict);
  CHECK(window.push(0) == "a");
  CHECK(window.push(-1) == "");
  CHECK(window.push(99) == "");
  CHECK(window.push(0) == "a");
  CHECK(window.unknown_ids() == 2);
}

TEST_CASE("decoder: behind a prompt, none of whose text comes out") {
  const BytesTokenizer bytes = BytesTokenizer::of_all_bytes();
  const DecodeOnly window(bytes);
  const auto both = [&](const std::vector<TokenId>& prompt, const std::vector<TokenId>& ids,
                        const std::vector<std::string>& expected) {
    CHECK(primed_pieces(bytes, prompt, ids) == expected);
    CHECK(primed_pieces(window, prompt, ids) == expected);
  };
  both({'a', 'b'}, {'c'}, {"c", ""});
  both({'a', 0xF0, 0x9F}, {0x8C, 0xB6, '!'}, {"", "🌶", "!", ""});  // ends inside a character: we complete it
  both({'a', 0xC3}, {'x'}, {"x", ""});                                // we do not: its U+FFFD is the prompt's
  both({'a', 0xC3}, {0xC3, 0xA9}, {"", "é", ""});
  both({'a', 0x80}, {'x'}, {"x", ""});
  both({'a', 0xC3}, {}, {""});
  both({}, {'x'}, {"x", ""});
  both({'a'}, {0x80, 'x'}, {"", fffd + "x", ""});
}

TEST_CASE("decoder: priming with a long prompt looks at a few ids") {
  struct Counting : BytesTokenizer {
    using BytesTokenizer::BytesTokenizer;
    mutable std::size_t looked = 0;
    std::string_view token_bytes(TokenId id) const {
      ++looked;
      return BytesTokenizer::token_bytes(id);
    }
  };
  const Counting bytes({"a", "\xC3", "\xA9", ""});
  std::vector<TokenId> prompt(1'000'000, 0);
  prompt.push_back(1);
  IncrementalDecoder decoder(bytes);
  decoder.prime(prompt);
  CHECK(bytes.looked < 20);
  CHECK(decoder.push(2) == "é");

  const DecodeOnly text_only(bytes);
  IncrementalDecoder window(text_only);
  window.prime(prompt);
  CHECK(text_only.longest() < 20);
  CHECK(window.push(2) == "é");
  // Also if nothing in it has text.
  decoder.prime(std::vector<TokenId>(1'000'000, 3));
  CHECK(bytes.looked < 3000);
}

TEST_CASE("decoder: the leading space of a sequence goes once, and not behind a prompt") {
  const SpaceStripping bytes({" Hello", " world", "!", "", "\xFF"});
  const DecodeOnly window(bytes);
  const auto both = [&](const std::vector<TokenId>& prompt, const std::vector<TokenId>& ids, const std::string& expected) {
    const auto joined = [](const std::vector<std::string>& pieces) {
      std::string all;
      for (const std::string& piece : pieces) all += piece;
      return all;
    };
    CHECK(joined(primed_pieces(bytes, prompt, ids)) == expected);
    CHECK(joined(primed_pieces(window, prompt, ids)) == expected);
  };
  both({}, {0, 1, 1, 2}, "Hello world world!");
  both({}, {3, 3, 0, 1}, "Hello world");  // tokens without text before it
  both({0}, {1, 1}, " world world");
  both({0, 3, 3}, {1}, " world");
  both({}, {2, 1}, "! world");
  std::vector<TokenId> many(100, 1);
  std::string expected = "world";
  for (int i = 1; i < 100; ++i) expected += " world";
  both({}, many, expected);
}

TEST_CASE("decoder: the window stays small when nothing becomes printable for a million ids") {
  const BytesTokenizer bytes({"\x80", "\xE4", "\xB8", "", "a", "\xFF"});
  for (const std::vector<TokenId>& cycle :
       std::vector<std::vector<TokenId>>{{0}, {1, 2}, {1}, {5}, {3}, {1, 3, 3}, {0, 1, 2, 3, 5}}) {
    const DecodeOnly window(bytes);
    IncrementalDecoder decoder(window);
    IncrementalDecoder by_bytes(bytes);
    std::size_t replaced = 0;
    const std::size_t n = 30'000;
    for (std::size_t i = 0; i < n; ++i) {
      CHECK(decoder.push(cycle[i % cycle.size()]).empty());
      static_cast<void>(by_bytes.push(cycle[i % cycle.size()]));
    }
    CHECK(window.longest() <= 64);
    const std::string text(decoder.push(4));
    CHECK(text == by_bytes.push(4));
    CHECK(text.ends_with("a"));
    replaced = (text.size() - 1) / 3;
    CHECK(replaced <= n);
  }
}

TEST_CASE("decoder: a tokenizer that changes its text afterwards causes neither an error nor a retraction") {
  // Cleans up spaces before punctuation, and shows a run of bytes as U+FFFDs unless all of it is well-formed.
  struct Unstable {
    BytesTokenizer bytes{{"Hello", " ", ".", "\xE5", "\x8F", "\xAB", "\xFF", "word "}};
    std::string decode(const std::vector<TokenId>& ids) const {
      std::string text;
      for (std::size_t i = 0; i < ids.size();) {
        if (ids[i] < 3 || ids[i] > 6) {
          text += bytes.token_bytes(ids[i++]);
          continue;
        }
        std::string run;
        for (; i < ids.size() && ids[i] >= 3 && ids[i] <= 6; ++i) run += bytes.token_bytes(ids[i]);
        if (test_support::decode_bytes(run) == run) {
          text += run;
        } else {
          for (std::size_t n = run.size(); n > 0; --n) text += replacement_character;
        }
      }
      for (std::size_t at = text.find(" ."); at != std::string::npos; at = text.find(" .")) text.erase(at, 1);
      return text;
    }
  };
  const Unstable tokenizer;
  for (unsigned seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    IncrementalDecoder decoder(tokenizer);
    std::string text;
    for (int i = 0; i < 100; ++i) {
      const std::string piece(decoder.push(static_cast<TokenId>(random() % 8)));
      CHECK(test_support::decode_bytes(piece) == piece);
      text += piece;
    }
    text += decoder.flush();
    CHECK(test_support::decode_bytes(text) == text);
  }
  IncrementalDecoder decoder(tokenizer);
  std::string text;
  for (const TokenId id : {3, 4, 5, 6, 0, 2}) text += decoder.push(id);
  text += decoder.flush();
  CHECK(text.starts_with("叫"));
  CHECK(text.ends_with("Hello."));
}

TEST_CASE("decoder: a prompt's own U+FFFDs stay the prompt's, on both paths") {
  const BytesTokenizer bytes = BytesTokenizer::of_all_bytes();
  const DecodeOnly window(bytes);
  for (unsigned seed = 0; seed < 2000; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const std::vector<TokenId> alphabet = {'a', 0xC3, 0xA9, 0xE4, 0xB8, 0xAD, 0xF0, 0x9F, 0x98, 0x80, 0xFF};
    const auto some = [&](std::size_t most) {
      std::vector<TokenId> ids(random() % most);
      for (TokenId& id : ids) id = alphabet[random() % alphabet.size()];
      return ids;
    };
    const std::vector<TokenId> prompt = some(8);
    const std::vector<TokenId> ids = some(12);
    CHECK(primed_pieces(window, prompt, ids) == primed_pieces(bytes, prompt, ids));
  }
}

TEST_CASE("decoder: a tokenizer that fails once is asked again, and unknown ids in a prompt are no error") {
  struct Failing {
    const BytesTokenizer* bytes;
    mutable bool fails = false;
    std::string decode(const std::vector<TokenId>& ids) const {
      if (fails) throw std::runtime_error("busy");
      for (const TokenId id : ids) static_cast<void>(bytes->token_bytes(id));  // throws std::out_of_range
      return bytes->decode(ids);
    }
  };
  const BytesTokenizer bytes({"a", "b"});
  const Failing tokenizer{&bytes};
  IncrementalDecoder decoder(tokenizer);
  CHECK_NOTHROW(decoder.prime(std::vector<TokenId>{0, 300, -1, 0}));
  CHECK(decoder.unknown_ids() == 0);
  CHECK(decoder.push(1) == "b");
  tokenizer.fails = true;
  CHECK_THROWS_AS(static_cast<void>(decoder.push(0)), std::runtime_error);
  tokenizer.fails = false;
  CHECK(decoder.push(0) == "a");
  CHECK(decoder.push(1) == "b");
}

TEST_CASE("decoder: copies are independent") {
  const BytesTokenizer bytes({"\xC3", "\xA9", "x"});
  IncrementalDecoder first(bytes);
  static_cast<void>(first.push(0));
  IncrementalDecoder second = first;
  CHECK(second.push(1) == "é");
  CHECK(first.push(2) == fffd + "x");
}

TEST_CASE("decoder: after a flush it is as new") {
  const SpaceStripping bytes({" Hello", "\xC3", "\xA9", "\x80", "x"});
  const DecodeOnly text_only(bytes);
  const auto check = [](auto decoder) {
    const auto both = [&decoder](TokenId id) {
      std::string text(decoder.push(id));
      return text += decoder.flush();
    };
    CHECK(both(1) == fffd);
    CHECK(both(2) == fffd);  // completes nothing that was flushed
    CHECK(both(4) == "x");   // and nothing waits before it
    CHECK(both(0) == "Hello");
    CHECK(both(0) == "Hello");  // each text has a leading space of its own
    CHECK(decoder.push(3) == "");
    CHECK(decoder.push(4) == fffd + "x");
    CHECK(decoder.last_span().end == 4);
    CHECK(decoder.flush() == "");
    CHECK(decoder.push(4) == "x");
    CHECK(decoder.last_span().begin == 0);
  };
  check(IncrementalDecoder(bytes));
  check(IncrementalDecoder(text_only));
}

TEST_CASE("decoder: a prompt may end anywhere inside a character, and hold ids that nobody knows") {
  const BytesTokenizer bytes = BytesTokenizer::of_all_bytes();
  const DecodeOnly window(bytes);
  const auto both = [&](const std::vector<TokenId>& prompt, const std::vector<TokenId>& ids,
                        const std::vector<std::string>& expected) {
    CHECK(primed_pieces(bytes, prompt, ids) == expected);
    CHECK(primed_pieces(window, prompt, ids) == expected);
  };
  both({'a', 0xF0, 0x9F, 0x8C}, {0xB6, '!'}, {"🌶", "!", ""});
  both({0xF0, 0x9F, 0x8C}, {0xB6, '!'}, {"🌶", "!", ""});
  both({0xF0, 0x9F}, {0x8C, 0xB6}, {"", "🌶", ""});
  both({0xC3}, {0xA9}, {"é", ""});
  CHECK(primed_pieces(bytes, {0xC3, 300, -1}, {0xA9}) == std::vector<std::string>{"é", ""});
  CHECK(primed_pieces(bytes, {'a', 0xC3, 256}, {'x'}) == std::vector<std::string>{"x", ""});
}

TEST_CASE("decoder: a tokenizer whose text falls apart nowhere is decoded through a bounded window all the same") {
  // Each id's text depends on its place in the list, so that no tail of the window decodes to the tail of its text.
  struct Placed {
    mutable std::size_t longest = 0;
    std::string decode(const std::vector<TokenId>& ids) const {
      longest = std::max(longest, ids.size());
      std::string text;
      for (std::size_t i = 0; i < ids.size(); ++i) text += static_cast<char>('!' + i % 90);
      return text;
    }
  };
  const Placed tokenizer;
  IncrementalDecoder decoder(tokenizer);
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    const std::string piece(decoder.push(1));
    CHECK(piece.size() == 1);  // one character an id: nothing comes twice, nothing is lost
    text += piece;
  }
  CHECK(decoder.flush() == "");
  CHECK(text.starts_with("!\"#$%&'()"));
  CHECK(tokenizer.longest <= 64);
}

TEST_CASE("decoder: before the first id nothing stands anywhere, and a reset forgets what was counted") {
  const BytesTokenizer bytes({"a", "\x80"});
  const DecodeOnly text_only(bytes);
  const auto check = [](auto decoder) {
    const auto is_new = [&decoder] {
      CHECK(decoder.last_span().begin == 0);
      CHECK(decoder.last_span().end == 0);
      CHECK(decoder.last_span().resolved == 0);
      CHECK_FALSE(decoder.last_span().open);
      CHECK(decoder.unknown_ids() == 0);
    };
    is_new();
    for (const TokenId id : {0, -1, 1}) static_cast<void>(decoder.push(id));
    CHECK(decoder.unknown_ids() == 1);
    decoder.reset();
    is_new();
    CHECK(decoder.push(0) == "a");  // and what waited
  };
  check(IncrementalDecoder(bytes));
  check(IncrementalDecoder(text_only));
}

TEST_CASE("decoder: a character that began in the prompt is the prompt's as long as it is incomplete, and no longer") {
  const BytesTokenizer bytes = BytesTokenizer::of_all_bytes();
  const DecodeOnly window(bytes);
  const auto both = [&](const std::vector<TokenId>& prompt, const std::vector<TokenId>& ids,
                        const std::vector<std::string>& expected) {
    CHECK(primed_pieces(bytes, prompt, ids) == expected);
    CHECK(primed_pieces(window, prompt, ids) == expected);
  };
  both({0xC3}, {0xA9, 0xC3, 'x'}, {"é", "", fffd + "x", ""});  // what the answer breaks off is its own
  both({0xC3}, {0xA9, 0xC3}, {"é", "", fffd});
  both({'a', 0xF0, 0x9F}, {0x8C, 'x'}, {"", "x", ""});
  both({'a', 0xF0, 0x9F}, {0x8C}, {"", ""});
}
