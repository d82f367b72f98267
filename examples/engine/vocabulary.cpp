// SPDX-License-Identifier: Apache-2.0

#include "vocabulary.hpp"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

#include "byte_map.hpp"

namespace engine {
namespace {

constexpr std::string_view space_mark = "\xE2\x96\x81";  // U+2581, SentencePiece's space

// Texts that end an answer when they are control tokens, whatever else the file names.
constexpr std::string_view end_texts[] = {
    "<|im_end|>",    "<|eot_id|>",      "<|eom_id|>",    "<|end|>",
    "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>", "</s>",
    "<eos>",         "<|return|>",      "<|call|>",      "<EOT>",
    "_<EOT>",        "[EOT]",           "[EOS]",         "<end_of_utterance>",
    "<turn|>",       "<|end_of_turn|>",
};

Vocabulary::Kind kind_of(const Gguf& file) {
  const auto model = file.string("tokenizer.ggml.model");
  if (!model) {
    throw FileError(file.label() + ": has no tokenizer (no tokenizer.ggml.model)");
  }
  if (*model == "gpt2") {
    return Vocabulary::Kind::byte_level_bpe;
  }
  if (*model == "llama") {
    return Vocabulary::Kind::sentencepiece;
  }
  throw FileError(file.label() + ": the tokenizer model " + in_quotes(*model) + " is not supported (gpt2 and llama are)");
}

TokenType token_type(std::int64_t number) {
  return number >= 0 && number <= 6 ? static_cast<TokenType>(number) : TokenType::undefined;
}

// The byte of "<0xXX>".
std::optional<unsigned char> byte_of(std::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text.back() != '>') {
    return std::nullopt;
  }
  unsigned value = 0;
  for (const char c : text.substr(3, 2)) {
    constexpr std::string_view digits = "0123456789ABCDEF";
    const std::size_t digit = digits.find(c >= 'a' && c <= 'f' ? static_cast<char>(c - 'a' + 'A') : c);
    if (digit == std::string_view::npos) {
      return std::nullopt;
    }
    value = value * 16 + static_cast<unsigned>(digit);
  }
  return static_cast<unsigned char>(value);
}

void append_with_spaces(std::string& output, std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    if (text.substr(at, space_mark.size()) == space_mark) {
      output += ' ';
      at += space_mark.size();
    } else {
      output += text[at++];
    }
  }
}

}  // namespace

Vocabulary::Vocabulary(const Gguf& file) : kind(kind_of(file)) {
  byte_tokens.fill(-1);
  const auto tokens = file.strings("tokenizer.ggml.tokens");
  const auto numbers = file.integers("tokenizer.ggml.token_type");
  scores = file.floats("tokenizer.ggml.scores");
  if (tokens.empty()) {
    throw FileError(file.label() + ": has no tokens (tokenizer.ggml.tokens)");
  }
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw FileError(file.label() + ": has too many tokens");
  }
  if (file.has("tokenizer.ggml.token_type") && numbers.size() < tokens.size()) {
    throw FileError(file.label() + ": has fewer entries in tokenizer.ggml.token_type than tokens");
  }
  if (file.has("tokenizer.ggml.scores") && scores.size() < tokens.size()) {
    throw FileError(file.label() + ": has fewer entries in tokenizer.ggml.scores than tokens");
  }
  size = static_cast<std::int32_t>(tokens.size());
  scores.resize(tokens.size(), 0.0F);
  types.resize(tokens.size(), TokenType::normal);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    bytes += tokens[i].size();
    types[i] = i < numbers.size() ? token_type(numbers[i]) : TokenType::normal;
  }

  texts.reserve(tokens.size(), bytes);
  pieces.reserve(tokens.size(), bytes);
  std::string piece;
  for (std::int32_t id = 0; id < size; ++id) {
    const std::string_view text = tokens[static_cast<std::size_t>(id)];
    if (texts.append(text); !text.empty()) {
      texts.make_findable(id);
    }
    piece.clear();
    bool plain = false;
    switch (type(id)) {
      case TokenType::control:
      case TokenType::unknown: break;  // not shown
      case TokenType::user_defined:
        piece = text;
        plain = kind == Kind::sentencepiece;
        break;
      case TokenType::byte:
        if (const auto byte = byte_of(text)) {
          piece = static_cast<char>(*byte);
          if (byte_tokens[*byte] < 0) {
            byte_tokens[*byte] = id;
          }
          break;
        }
        [[fallthrough]];
      case TokenType::undefined:
      case TokenType::normal:
      case TokenType::unused:
        if (kind == Kind::sentencepiece) {
          append_with_spaces(piece, text);
          plain = true;
        } else {
          plain = append_mapped_bytes(piece, text);
          if (!plain) {
            piece = text;
          }
        }
        break;
    }
    pieces.append(piece);
    if (plain && !piece.empty()) {
      pieces.make_findable(id);
    }
  }

  const auto special = [&](const char* key) -> std::optional<std::int32_t> {
    const auto id = file.integer(key);
    return id && *id >= 0 && *id < size ? std::optional(static_cast<std::int32_t>(*id)) : std::nullopt;
  };
  bos = special("tokenizer.ggml.bos_token_id");
  eos = special("tokenizer.ggml.eos_token_id");
  unknown = special("tokenizer.ggml.unknown_token_id");
  if (kind == Kind::sentencepiece && size > 2) {
    // SentencePiece's own numbers, where the file names none.
    const auto otherwise = [&](std::optional<std::int32_t>& id, std::int32_t standard, TokenType wanted) {
      if (!id && type(standard) == wanted) {
        id = standard;
      }
    };
    otherwise(unknown, 0, TokenType::unknown);
    otherwise(bos, 1, TokenType::control);
    otherwise(eos, 2, TokenType::control);
  }

  const auto add_end = [&](std::optional<std::int32_t> id) {
    if (id && std::find(end_ids.begin(), end_ids.end(), *id) == end_ids.end()) {
      end_ids.push_back(*id);
    }
  };
  add_end(eos);
  add_end(special("tokenizer.ggml.eot_token_id"));
  add_end(special("tokenizer.ggml.eom_token_id"));
  for (const std::string_view text : end_texts) {
    if (const std::int32_t id = texts.find(text); id >= 0 && type(id) == TokenType::control) {
      add_end(id);
    }
  }
}

}  // namespace engine
