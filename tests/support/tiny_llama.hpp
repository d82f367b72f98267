// SPDX-License-Identifier: Apache-2.0
// A tiny Llama with random weights, kept as plain matrices and written as a GGUF file.
//
//     const test_support::TinyLlama model({.tied = false});
//     const test_support::Bytes bytes = model.gguf().bytes();              // keep them while the file is in use
//     auto gguf = std::make_shared<const engine::Gguf>(bytes);
//
// Errors: none. Lifetime: a value of its own.
#pragma once

#include "gguf_writer.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace test_support {

/// Sizes chosen to differ from each other, so that a mix-up shows; group of 3 query heads, heads wider than hidden / heads.
struct TinyLlamaShape {
  std::size_t layers = 3;
  std::size_t hidden = 36;
  std::size_t heads = 6;
  std::size_t kv_heads = 2;
  std::size_t head_dim = 10;
  std::size_t rope_dims = 8;
  std::size_t inner = 44;
  std::size_t vocab = 53;
  std::size_t context = 128;
  double theta = 500;
  float eps = 1e-5F;
  bool tied = true;
  double linear_factor = 1;              ///< written as rope scaling if it is not 1
  std::vector<float> rope_factors = {};  ///< written as rope_freqs.weight if there are any
  bool q8_0 = false;                     ///< matrices are rounded to Q8_0 and written so; widths must be multiples of 32
};

/// Shape: values are [rows, cols], row after row
struct PlainMatrix {
  std::size_t rows = 0;
  std::size_t cols = 0;
  std::vector<float> values;
};

class TinyLlama {
 public:
  explicit TinyLlama(TinyLlamaShape shape = {}, unsigned seed = 1) : shape_(std::move(shape)), random_(seed) {
    const std::size_t queries = shape_.heads * shape_.head_dim;
    const std::size_t keys = shape_.kv_heads * shape_.head_dim;
    add("token_embd.weight", shape_.vocab, shape_.hidden, 1);
    for (std::size_t i = 0; i < shape_.layers; ++i) {
      const std::string prefix = "blk." + std::to_string(i) + ".";
      add_norm(prefix + "attn_norm.weight");
      add(prefix + "attn_q.weight", queries, shape_.hidden, 2);
      add(prefix + "attn_k.weight", keys, shape_.hidden, 2);
      add(prefix + "attn_v.weight", keys, shape_.hidden, 1);
      add(prefix + "attn_output.weight", shape_.hidden, queries, 1);
      add_norm(prefix + "ffn_norm.weight");
      add(prefix + "ffn_gate.weight", shape_.inner, shape_.hidden, 1);
      add(prefix + "ffn_up.weight", shape_.inner, shape_.hidden, 1);
      add(prefix + "ffn_down.weight", shape_.hidden, shape_.inner, 1);
    }
    add_norm("output_norm.weight");
    if (!shape_.tied) add("output.weight", shape_.vocab, shape_.hidden, 1);
  }

  const TinyLlamaShape& shape() const { return shape_; }
  const PlainMatrix& matrix(const std::string& name) const { return matrices_.at(name); }
  /// For tests that spoil the file before they write it.
  std::map<std::string, PlainMatrix>& matrices() { return matrices_; }

  /// The whole model; `metadata` writes its keys without `general.architecture`.
  GgufWriter gguf() const {
    GgufWriter writer;
    writer.string("general.architecture", "llama");
    metadata(writer);
    tensors(writer);
    return writer;
  }

  void metadata(GgufWriter& writer) const {
    writer.put("llama.block_count", size(shape_.layers)).put("llama.embedding_length", size(shape_.hidden));
    writer.put("llama.feed_forward_length", size(shape_.inner)).put("llama.context_length", size(shape_.context));
    writer.put("llama.attention.head_count", size(shape_.heads));
    writer.put("llama.attention.head_count_kv", size(shape_.kv_heads));
    writer.put("llama.attention.key_length", size(shape_.head_dim)).put("llama.attention.value_length", size(shape_.head_dim));
    writer.put("llama.attention.layer_norm_rms_epsilon", shape_.eps);
    writer.put("llama.rope.freq_base", static_cast<float>(shape_.theta));
    writer.put("llama.rope.dimension_count", size(shape_.rope_dims));
    if (shape_.linear_factor != 1) {
      writer.string("llama.rope.scaling.type", "linear");
      writer.put("llama.rope.scaling.factor", static_cast<float>(shape_.linear_factor));
    }
  }

  void tensors(GgufWriter& writer) const {
    for (const auto& [name, matrix] : matrices_) {
      if (matrix.rows == 1) {
        writer.tensor(name, 0, {matrix.cols}, bytes_of(matrix.values));
      } else {
        writer.tensor(name, shape_.q8_0 ? 8 : 0, {matrix.cols, matrix.rows},
                      shape_.q8_0 ? q8_0_of(matrix.values) : bytes_of(matrix.values));
      }
    }
    if (!shape_.rope_factors.empty()) {
      writer.tensor("rope_freqs.weight", 0, {shape_.rope_factors.size()}, bytes_of(shape_.rope_factors));
    }
  }

 private:
  static std::uint32_t size(std::size_t n) { return static_cast<std::uint32_t>(n); }

  static Bytes bytes_of(const std::vector<float>& values) {
    Bytes bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }

  // The power of two that is the scale of a block of 32 values.
  static float scale_of(const float* block) {
    float largest = 0;
    for (std::size_t i = 0; i < 32; ++i) largest = std::max(largest, std::abs(block[i]));
    return std::exp2(std::ceil(std::log2(largest / 127)));
  }

  // Pre: the values are multiples of their block's scale.
  static Bytes q8_0_of(const std::vector<float>& values) {
    Bytes bytes;
    for (std::size_t at = 0; at < values.size(); at += 32) {
      const float scale = scale_of(values.data() + at);
      const int half = (std::ilogb(scale) + 15) << 10;
      bytes.push_back(static_cast<std::byte>(half & 0xFF));
      bytes.push_back(static_cast<std::byte>(half >> 8));
      for (std::size_t i = 0; i < 32; ++i)
        bytes.push_back(static_cast<std::byte>(static_cast<int>(values[at + i] / scale) & 0xFF));
    }
    return bytes;
  }

  // Outputs as large as inputs, times `gain`: attention that is neither flat nor one-hot.
  void add(const std::string& name, std::size_t rows, std::size_t cols, double gain) {
    PlainMatrix& matrix = matrices_[name];
    matrix = {rows, cols, {}};
    std::normal_distribution<double> values(0, gain / std::sqrt(static_cast<double>(cols)));
    for (std::size_t i = 0; i < rows * cols; ++i) matrix.values.push_back(static_cast<float>(values(random_)));
    for (std::size_t at = 0; shape_.q8_0 && at < rows * cols; at += 32) {
      const float scale = scale_of(matrix.values.data() + at);
      for (std::size_t i = 0; i < 32; ++i) matrix.values[at + i] = std::round(matrix.values[at + i] / scale) * scale;
    }
  }

  void add_norm(const std::string& name) {
    PlainMatrix& matrix = matrices_[name];
    matrix = {1, shape_.hidden, {}};
    std::uniform_real_distribution<float> values(0.5F, 1.5F);
    for (std::size_t i = 0; i < shape_.hidden; ++i) matrix.values.push_back(values(random_));
  }

  TinyLlamaShape shape_;
  std::mt19937 random_;
  std::map<std::string, PlainMatrix> matrices_;
};

}  // namespace test_support
