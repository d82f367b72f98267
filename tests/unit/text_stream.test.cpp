// SPDX-License-Identifier: Apache-2.0
// The vectors of data/streaming.json: tokens as bytes, stop strings and how the answer ends; what must come out, push by push.
#include "support/bytes_tokenizer.hpp"

#include <tinyllm/text/text_stream.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <numeric>

using namespace tinyllm;
using nlohmann::json;
using test_support::BytesTokenizer;
using test_support::DecodeOnly;

namespace {

const json& vectors() {
  static const json data = json::parse(std::ifstream(TEST_DATA_DIR "/streaming.json"));
  return data.at("vectors");
}

// The vector's tokens as a vocabulary: its ids are 0, 1, 2 ...; the prompt's tail is the last one.
BytesTokenizer tokenizer_of(const json& vector) {
  std::vector<std::string> tokens;
  for (const std::string hex : vector.at("tokens_hex")) tokens.push_back(test_support::from_hex(hex));
  tokens.push_back(test_support::from_hex(vector.at("prompt_tail_hex").get<std::string>()));
  return BytesTokenizer(tokens);
}

template <class Tokenizer>
void check_decoder(const Tokenizer& tokenizer, Index n, Replacement replacement, const json& expected) {
  IncrementalDecoder decoder(tokenizer, replacement);
  decoder.prime(std::vector<TokenId>{static_cast<TokenId>(n)});
  for (TokenId id = 0; id < n; ++id)
    CHECK(decoder.push(id) == expected.at("pieces").at(static_cast<std::size_t>(id)).get<std::string>());
  CHECK(decoder.flush() == expected.at("flush").get<std::string>());
}

template <class Tokenizer>
void check_stream(const Tokenizer& tokenizer, const json& vector) {
  const json& expected = vector.at("stream");
  TextStream stream(tokenizer, {.stop = vector.at("stops").get<std::vector<std::string>>(),
                                .include_stop = vector.at("include_stop").get<bool>()});
  const auto n = static_cast<TokenId>(vector.at("tokens_hex").size());
  stream.prime(std::vector<TokenId>{n});
  std::string text;
  std::vector<std::string> pieces;
  for (TokenId id = 0; id < n && !stream.stopped(); ++id) {
    pieces.emplace_back(stream.push(id));
    text += pieces.back();
  }
  CHECK(pieces == expected.at("pieces").get<std::vector<std::string>>());
  CHECK(static_cast<std::size_t>(expected.at("ids_used").get<int>()) == pieces.size());
  const std::string flush(stream.finish());
  text += flush;
  CHECK(flush == expected.at("flush").get<std::string>());
  CHECK(text == expected.at("text").get<std::string>());
  if (expected.at("matched").is_null()) {
    CHECK(stream.matched() == std::nullopt);
  } else {
    CHECK(stream.matched() == expected.at("matched").get<std::string>());
  }
  const std::string reason = stream.stopped() || vector.at("end") == "eos" ? "stop" : "length";
  CHECK(reason == expected.at("finish_reason").get<std::string>());
}

}  // namespace

TEST_CASE("streaming vectors: the decoder waits") {
  CHECK(vectors().size() == 157);
  for (const json& vector : vectors()) {
    CAPTURE(vector.at("name").get<std::string>());
    const BytesTokenizer bytes = tokenizer_of(vector);
    check_decoder(bytes, bytes.vocab_size() - 1, Replacement::wait, vector.at("decoder_wait"));
    check_decoder(DecodeOnly(bytes), bytes.vocab_size() - 1, Replacement::wait, vector.at("decoder_wait"));
  }
}

TEST_CASE("streaming vectors: the decoder is eager") {
  for (const json& vector : vectors()) {
    CAPTURE(vector.at("name").get<std::string>());
    const BytesTokenizer bytes = tokenizer_of(vector);
    check_decoder(bytes, bytes.vocab_size() - 1, Replacement::eager, vector.at("decoder_eager"));
  }
}

TEST_CASE("streaming vectors: eager through the window, where one U+FFFD at the end may be an incomplete character") {
  for (const json& vector : vectors()) {
    CAPTURE(vector.at("name").get<std::string>());
    const BytesTokenizer bytes = tokenizer_of(vector);
    const DecodeOnly window(bytes);
    IncrementalDecoder decoder(window, Replacement::eager);
    const auto n = static_cast<TokenId>(bytes.vocab_size() - 1);
    decoder.prime(std::vector<TokenId>{n});
    std::string text;
    std::string expected;
    for (TokenId id = 0; id < n; ++id) {
      text += decoder.push(id);
      expected += vector.at("decoder_eager").at("pieces").at(static_cast<std::size_t>(id)).get<std::string>();
      CHECK((text == expected || text + std::string(replacement_character) == expected));
    }
    text += decoder.flush();
    CHECK(text == expected + vector.at("decoder_eager").at("flush").get<std::string>());
  }
}

TEST_CASE("streaming vectors: the whole stream, by bytes and through the window") {
  for (const json& vector : vectors()) {
    CAPTURE(vector.at("name").get<std::string>());
    const BytesTokenizer bytes = tokenizer_of(vector);
    check_stream(bytes, vector);
    check_stream(DecodeOnly(bytes), vector);
  }
}

TEST_CASE("text stream: nothing comes after a stop") {
  const BytesTokenizer bytes({"ab", "c", "\xC3"});
  TextStream stream(bytes, {.stop = {"b"}});
  CHECK(stream.push(0) == "a");
  CHECK(stream.stopped());
  CHECK(stream.finish() == "");
  CHECK_THROWS(static_cast<void>(stream.push(1)));
}

TEST_CASE("text stream: before min_tokens text goes out unmatched, and matching starts after") {
  const BytesTokenizer bytes({"a", "b", "x"});
  TextStream stream(bytes, {.stop = {"ab", "b"}, .min_tokens = 2});
  CHECK(stream.push(0) == "a");  // not held, though it begins a stop
  CHECK(stream.push(1) == "b");
  CHECK_FALSE(stream.stopped());
  CHECK(stream.push(2) == "x");
  CHECK(stream.push(1) == "");
  CHECK(stream.matched() == "b");
}

TEST_CASE("text stream: a stop that is the text of a token which is not shown stops at that token") {
  struct WithSpecial : BytesTokenizer {
    using BytesTokenizer::BytesTokenizer;
    std::optional<TokenId> token_to_id(std::string_view text) const {
      if (text == "<|end|>") return 3;
      if (text == "a") return 0;
      return std::nullopt;
    }
  };
  const WithSpecial bytes({"a", "<", "\xC3", ""});
  for (const bool include : {false, true}) {
    TextStream stream(bytes, {.stop = {"<|end|>", "a<<"}, .include_stop = include});
    CHECK(stream.push(0) == "");
    CHECK(stream.push(1) == "");
    CHECK(stream.push(2) == "");
    CHECK(stream.push(3) == std::string("a<\xEF\xBF\xBD") + (include ? "<|end|>" : ""));  // what was held goes out
    CHECK(stream.matched() == "<|end|>");
  }
  // What completes a visible stop by being flushed comes first.
  TextStream stream(bytes, {.stop = {"<|end|>", "a\xEF\xBF\xBD"}});
  static_cast<void>(stream.push(0));
  static_cast<void>(stream.push(2));
  CHECK(stream.push(3) == "");
  CHECK(stream.matched() == "a\xEF\xBF\xBD");
}

TEST_CASE("text stream: the flush goes through the stop strings") {
  const BytesTokenizer bytes({"a", "\xC3"});
  for (const bool include : {false, true}) {
    TextStream stream(bytes, {.stop = {"a\xEF\xBF\xBD"}, .include_stop = include});
    CHECK(stream.push(0) == "");
    CHECK(stream.push(1) == "");
    CHECK(stream.finish() == (include ? "a\xEF\xBF\xBD" : ""));
    CHECK(stream.matched() == "a\xEF\xBF\xBD");
  }
}

TEST_CASE("text stream: a stop that is the text of a token which is shown is matched as text") {
  struct WithIds : BytesTokenizer {
    using BytesTokenizer::BytesTokenizer;
    std::optional<TokenId> token_to_id(std::string_view text) const {
      return text == "a" ? std::optional<TokenId>(0) : std::nullopt;
    }
  };
  const WithIds bytes({"a", "b"});
  TextStream stream(bytes, {.stop = {"a", "ba"}});
  CHECK(stream.push(1) == "");  // held: it may become "ba"
  CHECK(stream.push(0) == "");
  CHECK(stream.matched() == "ba");  // the longest of those that end here
}
