// SPDX-License-Identifier: Apache-2.0

#include "pretokenizer.hpp"

#include <unicode/unistr.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

#include "gguf_error.hpp"
#include "utf8_scan.hpp"

namespace engine {
namespace {

using Patterns = std::vector<std::u16string_view>;

// ICU's \s leaves out some of Unicode's white space, so the property is written out.
#define WS u"\\p{White_Space}"
#define NOT_WS u"\\P{White_Space}"

constexpr std::u16string_view gpt2 =
    u"'(?:[stmd]|re|ve|ll)"
    u"| ?\\p{L}+| ?\\p{N}+| ?[^" WS u"\\p{L}\\p{N}]+"
    u"|" WS u"+(?!" NOT_WS u")|" WS u"+";

// The rules of Llama 3 and Qwen 2 differ only in how many digits stand together.
#define CONTRACTION_OR_LETTERS u"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define SYMBOLS_OR_SPACES u"| ?[^" WS u"\\p{L}\\p{N}]+[\\r\\n]*|" WS u"*[\\r\\n]+|" WS u"+(?!" NOT_WS u")|" WS u"+"

constexpr std::u16string_view llama3 = CONTRACTION_OR_LETTERS u"\\p{N}{1,3}" SYMBOLS_OR_SPACES;
constexpr std::u16string_view qwen2 = CONTRACTION_OR_LETTERS u"\\p{N}" SYMBOLS_OR_SPACES;

#undef SYMBOLS_OR_SPACES
#undef CONTRACTION_OR_LETTERS
#undef NOT_WS
#undef WS

constexpr std::u16string_view one_digit = u"\\p{N}";

struct Rule {
  std::string_view name;
  Patterns patterns;
  bool takes_known_words_whole = false;
  bool adds_bos = false;
};

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = [] {
    const Patterns digits_then_gpt2 = {one_digit, gpt2};
    const Patterns general = {u"[\\p{P}$+<=>\\^~|]+", gpt2, u"\\p{N}+", u"[0-9][0-9][0-9]"};
    std::vector<Rule> result;
    for (const std::string_view name : {"", "default"}) {
      result.push_back({name, general});
    }
    for (const std::string_view name : {"gpt-2", "phi-2", "mpt", "olmo", "jais"}) {
      result.push_back({name, {gpt2}});
    }
    for (const std::string_view name : {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}) {
      result.push_back({name, digits_then_gpt2});
    }
    for (const std::string_view name : {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"}) {
      result.push_back({name, {llama3}, true, true});
    }
    for (const std::string_view name : {"qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"}) {
      result.push_back({name, {qwen2}});
    }
    return result;
  }();
  return all;
}

void check(UErrorCode status, const char* action) {
  if (U_FAILURE(status) != 0) {
    throw std::runtime_error(std::string("splitting text into words: cannot ") + action + ": " + u_errorName(status));
  }
}

// The text as UTF-16. Bytes that are not UTF-8 become U+FFFD, one each, as walking back by Walker counts them.
icu::UnicodeString to_utf16(std::string_view text) {
  icu::UnicodeString result(static_cast<std::int32_t>(text.size()), 0, 0);
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    result.append(static_cast<UChar32>(point.value));
    at += point.length;
  }
  return result;
}

// Takes a text's bytes from the front, counted in UTF-16 units.
class Walker {
 public:
  explicit Walker(std::string_view text) : text_(text) {}

  std::string_view take(std::int32_t units) {
    const std::size_t start = at_;
    while (units > 0) {
      const CodePoint point = code_point_at(text_, at_);
      units -= point.value > 0xFFFF ? 2 : 1;
      at_ += point.length;
    }
    return text_.substr(start, at_ - start);
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

// Cuts the pieces that end at `ends` further, at both ends of every match within a piece.
std::vector<std::int32_t> cut(icu::RegexMatcher& matcher, const std::vector<std::int32_t>& ends) {
  std::vector<std::int32_t> result;
  UErrorCode status = U_ZERO_ERROR;
  std::int32_t start = 0;
  for (const std::int32_t end : ends) {
    // The bounds of the region are opaque: looking ahead, the end of the piece is the end of the text.
    matcher.region(start, end, status);
    std::int32_t last = start;
    while (matcher.find(status) != 0 && U_SUCCESS(status) != 0) {
      const std::int32_t from = matcher.start(status);
      const std::int32_t to = matcher.end(status);
      if (from > last) {
        result.push_back(from);
      }
      if (to > from) {
        result.push_back(to);
      }
      last = to;
    }
    check(status, "match");
    if (end > last) {
      result.push_back(end);
    }
    start = end;
  }
  return result;
}

}  // namespace

Pretokenizer::Pretokenizer(std::string_view name) {
  for (const Rule& rule : rules()) {
    if (rule.name == name) {
      for (const std::u16string_view pattern : rule.patterns) {
        UErrorCode status = U_ZERO_ERROR;
        const icu::UnicodeString text(pattern.data(), static_cast<std::int32_t>(pattern.size()));
        std::unique_ptr<const icu::RegexPattern> compiled(icu::RegexPattern::compile(text, 0, status));
        check(status, "compile a pattern");
        patterns_.push_back(std::move(compiled));
      }
      takes_known_words_whole_ = rule.takes_known_words_whole;
      adds_bos_ = rule.adds_bos;
      return;
    }
  }
  throw FileError("the pre-tokenizer " + in_quotes(name) + " (tokenizer.ggml.pre) is not supported");
}

std::vector<std::string_view> Pretokenizer::split(std::string_view text) const {
  if (text.size() >= std::size_t{1} << 30) {
    throw std::length_error("a text of " + std::to_string(text.size()) + " bytes is too long to tokenize at once");
  }
  std::vector<std::string_view> words;
  if (text.empty()) {
    return words;
  }
  const icu::UnicodeString utf16 = to_utf16(text);
  std::vector<std::int32_t> ends = {utf16.length()};
  for (const auto& pattern : patterns_) {
    UErrorCode status = U_ZERO_ERROR;
    const std::unique_ptr<icu::RegexMatcher> matcher(pattern->matcher(utf16, status));
    check(status, "start matching");
    ends = cut(*matcher, ends);
  }
  words.reserve(ends.size());
  Walker walker(text);
  std::int32_t start = 0;
  for (const std::int32_t end : ends) {
    words.push_back(walker.take(end - start));
    start = end;
  }
  return words;
}

}  // namespace engine
