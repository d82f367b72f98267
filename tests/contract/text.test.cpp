// SPDX-License-Identifier: Apache-2.0
// The contract of the streaming decoder, test by test under the contract's names.
#include "support/bytes_tokenizer.hpp"

#include <tinyllm/text/incremental_decoder.hpp>

#include <doctest/doctest.h>

#include <random>

using namespace tinyllm;
using test_support::BytesTokenizer;
using test_support::DecodeOnly;
using test_support::RawDecodeOnly;

namespace {

const std::string fffd(replacement_character);

template <class Tokenizer>
std::vector<std::string> pieces(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  IncrementalDecoder decoder(tokenizer);
  std::vector<std::string> out;
  for (const TokenId id : ids) out.emplace_back(decoder.push(id));
  out.emplace_back(decoder.flush());
  return out;
}

std::string joined(const std::vector<std::string>& pieces) {
  std::string all;
  for (const std::string& piece : pieces) all += piece;
  return all;
}

}  // namespace

TEST_CASE("hand_example_detokenizer") {
  const BytesTokenizer bytes = BytesTokenizer::of_all_bytes();
  const std::vector<TokenId> ids = {0xC3, 0xA9, 'x'};
  const std::vector<std::string> expected = {"", "é", "x", ""};
  CHECK(pieces(bytes, ids) == expected);
  CHECK(pieces(DecodeOnly(bytes), ids) == expected);
}

TEST_CASE("incremental_decode_concat_equals_decode") {
  // Tokens that begin and end anywhere inside characters, ill-formed ones among them.
  const BytesTokenizer bytes({"a",
                              " ",
                              "b\n",
                              "\xC3",
                              "\xA9",
                              "\xC3\xA9",
                              "\xE4",
                              "\xB8",
                              "\xAD",
                              "\xE4\xB8",
                              "\xB8\xAD"
                              "x",
                              "\xF0",
                              "\x9F",
                              "\x98\x80",
                              "\xF0\x9F\x98",
                              "\x80",
                              "\xFF",
                              "\xED\xA0",
                              "\xEF\xBF\xBD",
                              "\xEF\xBF",
                              "\xBD",
                              "",
                              "é\xF0",
                              "\xC0\xAF",
                              std::string(1, '\0')});
  for (unsigned seed = 0; seed < 400; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::vector<TokenId> ids(random() % 60);
    for (TokenId& id : ids) id = static_cast<TokenId>(random() % static_cast<unsigned>(bytes.vocab_size()));
    const std::string all = bytes.decode(ids);

    const std::vector<std::string> by_bytes = pieces(bytes, ids);
    CHECK(joined(by_bytes) == all);
    CHECK(pieces(DecodeOnly(bytes), ids) == by_bytes);
    CHECK(pieces(RawDecodeOnly(bytes), ids) == by_bytes);
    for (std::size_t i = 0; i + 1 < by_bytes.size(); ++i) {
      CHECK(test_support::decode_bytes(by_bytes[i]) == by_bytes[i]);  // well-formed
      CHECK_FALSE(by_bytes[i].ends_with(replacement_character));      // final
    }
  }
}

TEST_CASE("detokenizer_waits_for_whole_characters") {
  const BytesTokenizer bytes = BytesTokenizer::of_all_bytes();
  const auto both = [&bytes](const std::vector<TokenId>& ids, const std::vector<std::string>& expected) {
    CHECK(pieces(bytes, ids) == expected);
    CHECK(pieces(DecodeOnly(bytes), ids) == expected);
  };
  both({0xF0, 0x9F, 0x98, 0x80, '!'}, {"", "", "", "😀", "!", ""});
  both({'a', 0x80, 'b'}, {"a", "", fffd + "b", ""});  // a lone continuation byte
  both({'a', 0xE4, 0xB8}, {"a", "", "", fffd});       // cut off: one U+FFFD
  both({0xE4, 0xB8, 'x'}, {"", "", fffd + "x", ""});  // broken off: one U+FFFD
  both({0xC0, 0xAF}, {"", "", fffd + fffd});
  both({0xED, 0xA0, 0x80, '.'}, {"", "", "", fffd + fffd + fffd + ".", ""});
  const BytesTokenizer mixed({"a\xE4",
                              "\xB8\xAD"
                              "b"});
  CHECK(pieces(mixed, {0, 1}) == std::vector<std::string>{"a", "中b", ""});  // only the unfinished bytes wait
  CHECK(pieces(DecodeOnly(mixed), {0, 1}) == std::vector<std::string>{"a", "中b", ""});
}
