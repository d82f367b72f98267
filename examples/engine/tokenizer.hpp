// SPDX-License-Identifier: Apache-2.0
//
// The tokenizer that a GGUF file describes: text to token ids and back.
//
//     engine::Tokenizer tokenizer(engine::Gguf("model.gguf"));
//     std::vector<std::int32_t> ids = tokenizer.encode("<|im_start|>user\nHello");
//     std::string text = tokenizer.decode(ids);               // "user\nHello": special tokens are not shown
//
// Kinds: byte-level BPE (tokenizer.ggml.model "gpt2") and SentencePiece BPE ("llama"). No Unicode normalisation is done.
// Errors: FileError for another kind, an unknown pre-tokenizer or a damaged vocabulary; std::length_error for a text of
// 1 GiB or more. Text that is not UTF-8 is encoded byte for byte.
// Lifetime: nothing of the file is needed after construction. The views that token_bytes() gives stay valid as long as the
// tokenizer, moved or not.
// Threads: const members may be called from several threads at once.
// Cost: encoding is O(n log n) at worst, whatever the text.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bpe.hpp"
#include "gguf.hpp"
#include "pretokenizer.hpp"
#include "special_tokens.hpp"
#include "spm.hpp"
#include "vocabulary.hpp"

namespace engine {

struct EncodeOptions {
  bool add_special = true;    // the begin and end tokens that the file asks for
  bool parse_special = true;  // control tokens written in the text are recognised (user-defined ones always are)
};

class Tokenizer {
 public:
  explicit Tokenizer(const Gguf& file);

  // A begin token that is written in the text as well comes twice, as in other implementations.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text, EncodeOptions options = {}) const;

  // The text of the ids one after the other, without the leading space that strips_leading_space() speaks of.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const;

  [[nodiscard]] std::int32_t vocab_size() const { return vocabulary_->size; }

  // The bytes that a token adds to the text: empty for control and unknown tokens and for ids outside the vocabulary.
  [[nodiscard]] std::string_view token_bytes(std::int32_t id) const {
    return id >= 0 && id < vocabulary_->size ? vocabulary_->pieces[id] : std::string_view();
  }

  // By the text that the file writes ("<|im_end|>", "Ġthe"). The lowest id if there are several.
  [[nodiscard]] std::optional<std::int32_t> token_to_id(std::string_view text) const;

  // Every token that ends an answer, the file's eos first.
  [[nodiscard]] const std::vector<std::int32_t>& eos_ids() const { return vocabulary_->end_ids; }

  [[nodiscard]] std::optional<std::int32_t> bos_id() const { return vocabulary_->bos; }

  // Whether encode() puts the begin token first.
  [[nodiscard]] bool adds_bos() const { return add_bos_; }

  // Whether encoding put a space in front of the text, so that decoding drops one from the start of a sequence.
  [[nodiscard]] bool strips_leading_space() const { return space_prefix_; }

 private:
  void encode_text(std::string_view text, bool after_special, Bpe::Scratch& scratch, std::vector<std::int32_t>& ids) const;

  std::unique_ptr<Vocabulary> vocabulary_;  // at an address that the members below keep
  std::optional<Pretokenizer> pretokenizer_;
  std::optional<Bpe> bpe_;
  std::optional<Spm> spm_;
  SpecialTokens specials_;
  bool add_bos_ = false;
  bool add_eos_ = false;
  bool space_prefix_ = false;
  bool collapse_spaces_ = false;
};

}  // namespace engine
