// SPDX-License-Identifier: Apache-2.0
//
// The rule by which a byte-level vocabulary cuts text into words before it merges within each.
//
//     engine::Pretokenizer gpt2("gpt-2");
//     gpt2.split("Hello world");             // "Hello", " world"
//
// Errors: FileError naming a rule that is not known; std::length_error for text of 1 GiB or more.
// Lifetime: the words are views of the text given; together they are all of it, in order.
// Threads: split() may be called from several threads at once.
// Cost: linear in the text, runs of one kind of character of any length included.

#pragma once

#include <unicode/regex.h>

#include <memory>
#include <string_view>
#include <vector>

namespace engine {

class Pretokenizer {
 public:
  // `name` as in tokenizer.ggml.pre.
  explicit Pretokenizer(std::string_view name);

  [[nodiscard]] std::vector<std::string_view> split(std::string_view text) const;

  // A whole word that is in the vocabulary is one token, whatever the merges would make of it.
  [[nodiscard]] bool takes_known_words_whole() const { return takes_known_words_whole_; }

  // Whether the vocabularies of this rule put the begin token first unless the file says otherwise.
  [[nodiscard]] bool adds_bos() const { return adds_bos_; }

 private:
  // Applied one after the other: each cuts the pieces that the one before left at its matches' ends.
  std::vector<std::unique_ptr<const icu::RegexPattern>> patterns_;
  bool takes_known_words_whole_ = false;
  bool adds_bos_ = false;
};

}  // namespace engine
