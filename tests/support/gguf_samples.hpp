// SPDX-License-Identifier: Apache-2.0
//
// A GGUF file with something of everything, and the message with which a bad one is refused.
//
//     test_support::Bytes bytes = test_support::sample().bytes();
//     CHECK(test_support::failure(bytes).empty());
//
// Errors: failure() lets everything but FileError through.
// Lifetime: everything is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gguf.hpp"
#include "support/gguf_writer.hpp"

namespace test_support {

using engine::FileError;
using engine::Gguf;

inline Bytes counting(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i & 0xFF);
  return bytes;
}

// Every metadata type, a vocabulary, and three tensors.
inline GgufWriter sample(std::uint32_t version = 3) {
  GgufWriter writer(version);
  writer.string("general.architecture", "llama")
      .put("a.u8", std::uint8_t{200})
      .put("a.i8", std::int8_t{-100})
      .put("a.u16", std::uint16_t{60000})
      .put("a.i16", std::int16_t{-30000})
      .put("a.u32", std::uint32_t{4000000000})
      .put("a.i32", std::int32_t{-2000000000})
      .put("a.u64", std::uint64_t{9000000000})
      .put("a.u64.large", ~std::uint64_t{0})
      .put("a.i64", std::int64_t{-9000000000})
      .put("a.f32", 0.5F)
      .put("a.f64", 0.25)
      .put("a.true", true)
      .put("a.false", false)
      .array("a.integers", std::vector<std::int16_t>{1, -2, 3})
      .array("a.floats", std::vector<float>{1.5F, -2.5F})
      .strings("a.none", {})
      .string("tokenizer.ggml.model", "gpt2")
      .string("tokenizer.ggml.pre", "gpt-2")
      .strings("tokenizer.ggml.tokens", {"a", "b", "ab", "<|end|>"})
      .array("tokenizer.ggml.token_type", std::vector<std::int32_t>{1, 1, 1, 3})
      .strings("tokenizer.ggml.merges", {"a b"})
      .put("tokenizer.ggml.eos_token_id", std::uint32_t{3});
  writer.tensor("plain", 0, {3, 2}, counting(24))
      .tensor("packed", 2, {64, 2, 3}, counting(216))
      .tensor("vector", 1, {5}, counting(10));
  return writer;
}

// The message with which opening fails, or nothing.
inline std::string failure(const Bytes& bytes) {
  try {
    const Gguf file{std::span<const std::byte>(bytes)};
    return {};
  } catch (const FileError& error) {
    return error.what();
  }
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace test_support
