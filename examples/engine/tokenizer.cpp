// SPDX-License-Identifier: Apache-2.0

#include "tokenizer.hpp"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

namespace engine {
namespace {

constexpr std::string_view space_mark = "\xE2\x96\x81";  // U+2581, SentencePiece's space

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// Phi-3's special tokens take the white space after them along; the file's format has no place to say so.
bool swallows_space_after(const Gguf& file, std::string_view text) {
  std::string model(file.has("general.name") ? file.string("general.name").value_or("") : "");
  std::transform(model.begin(), model.end(), model.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  const bool phi3 = model.find("phi-3") != std::string::npos || model.find("phi3") != std::string::npos;
  return phi3 && text != "<unk>" && text != "<s>" && text != "<|endoftext|>";
}

// SentencePiece's view of a text: U+2581 is a space; on demand runs of spaces become one and none are left at the ends.
std::string sentencepiece_text(std::string_view text, bool prefix, bool collapse) {
  std::string result(prefix ? " " : "");
  result.reserve(text.size() + 1);
  const std::size_t start = result.size();
  for (std::size_t at = 0; at < text.size();) {
    const bool mark = text.substr(at, space_mark.size()) == space_mark;
    const char c = mark ? ' ' : text[at];
    at += mark ? space_mark.size() : 1;
    if (!collapse || c != ' ' || (result.size() > start && result.back() != ' ')) {
      result += c;
    }
  }
  if (collapse && result.size() > start && result.back() == ' ') {
    result.pop_back();
  }
  return result.size() == start ? std::string() : result;
}

}  // namespace

Tokenizer::Tokenizer(const Gguf& file) : vocabulary_(std::make_unique<Vocabulary>(file)) {
  if (vocabulary_->kind == Vocabulary::Kind::byte_level_bpe) {
    pretokenizer_.emplace(file.string("tokenizer.ggml.pre").value_or(""));
    const auto merges = file.strings("tokenizer.ggml.merges");
    bpe_.emplace(vocabulary_->pieces, vocabulary_->size, merges, pretokenizer_->takes_known_words_whole());
    add_bos_ = pretokenizer_->adds_bos();
  } else {
    spm_.emplace(vocabulary_->pieces, vocabulary_->scores, vocabulary_->byte_tokens, vocabulary_->unknown);
    add_bos_ = true;
    space_prefix_ = file.boolean("tokenizer.ggml.add_space_prefix").value_or(true);
    collapse_spaces_ = file.boolean("tokenizer.ggml.remove_extra_whitespaces").value_or(false);
  }
  add_bos_ = file.boolean("tokenizer.ggml.add_bos_token").value_or(add_bos_) && vocabulary_->bos;
  add_eos_ = file.boolean("tokenizer.ggml.add_eos_token").value_or(false) && vocabulary_->eos;

  for (std::int32_t id = 0; id < vocabulary_->size; ++id) {
    const TokenType type = vocabulary_->type(id);
    if (type == TokenType::control || type == TokenType::unknown || type == TokenType::user_defined) {
      const std::string_view text = vocabulary_->texts[id];
      specials_.add(text, {id, type != TokenType::user_defined, swallows_space_after(file, text)});
    }
  }
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  if (text.size() >= std::size_t{1} << 30) {
    throw std::length_error("a text of " + std::to_string(text.size()) + " bytes is too long to tokenize at once");
  }
  std::vector<std::int32_t> ids;
  if (options.add_special && add_bos_) {
    ids.push_back(*vocabulary_->bos);
  }
  Bpe::Scratch scratch;
  bool after_special = true;
  for (std::size_t at = 0; at < text.size();) {
    const auto match = specials_.next(text, at, options.parse_special);
    const std::size_t end = match ? match->start : text.size();
    if (end > at) {
      encode_text(text.substr(at, end - at), after_special, scratch, ids);
    }
    at = end;
    after_special = false;
    if (match) {
      ids.push_back(match->token.id);
      at += match->size;
      after_special = true;
      while (match->token.swallows_space_after && at < text.size() && is_space(text[at])) {
        ++at;
      }
    }
  }
  if (options.add_special && add_eos_) {
    ids.push_back(*vocabulary_->eos);
  }
  return ids;
}

void Tokenizer::encode_text(std::string_view text, bool after_special, Bpe::Scratch& scratch,
                            std::vector<std::int32_t>& ids) const {
  if (spm_) {
    spm_->encode(sentencepiece_text(text, space_prefix_ && after_special, collapse_spaces_), ids);
    return;
  }
  for (const std::string_view word : pretokenizer_->split(text)) {
    bpe_->encode(word, scratch, ids);
  }
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  bool at_start = space_prefix_;
  for (const std::int32_t id : ids) {
    std::string_view bytes = token_bytes(id);
    if (at_start && !bytes.empty()) {
      bytes.remove_prefix(bytes.front() == ' ' ? 1 : 0);
      at_start = false;
    }
    text += bytes;
  }
  return text;
}

std::optional<std::int32_t> Tokenizer::token_to_id(std::string_view text) const {
  const std::int32_t id = vocabulary_->texts.find(text);
  return id < 0 ? std::nullopt : std::optional(id);
}

}  // namespace engine
