// SPDX-License-Identifier: Apache-2.0
// The sizes and constants of a Llama-family model, read from a GGUF file's metadata and checked.
//
//     const engine::LlamaConfig config = engine::read_llama_config(gguf);
//     config.num_hidden_layers;              // names as in Hugging Face's config.json
//     config.max_position_embeddings;        // the context, in positions
//
// Units: sizes count floats, heads, layers or positions. Errors: `FileError` naming the key and the value that do not fit.
// Lifetime: a value of its own.
#pragma once

#include "gguf.hpp"

#include <tinyllm/core/types.hpp>

#include <string>
#include <vector>

namespace engine {

/// Every size is at least 1 and fits the others: heads divide into groups, `rope_dims` is even and within a head.
struct LlamaConfig {
  tinyllm::Index num_hidden_layers = 0;
  tinyllm::Index hidden_size = 0;
  tinyllm::Index num_attention_heads = 0;
  tinyllm::Index num_key_value_heads = 0;
  tinyllm::Index head_dim = 0;
  tinyllm::Index intermediate_size = 0;
  tinyllm::Index vocab_size = 0;
  tinyllm::Index max_position_embeddings = 0;
  float rms_norm_eps = 0;
  double rope_theta = 0;
  tinyllm::Index rope_dims = 0;  ///< leading values of a head that turn with the position, in pairs (2i, 2i + 1)
  double rope_scale = 1;         ///< positions are multiplied by it (linear scaling: 1 / factor)
};

/// Reads `llama.*`; the vocabulary's size is the rows of `token_embd.weight`.
/// Throws: `FileError` for another architecture, a missing or impossible value, or a feature that this engine lacks.
LlamaConfig read_llama_config(const Gguf& gguf);

/// How fast each rotary pair turns, in radians a position: theta^(-2i / rope_dims) · rope_scale, divided by the
/// factors of `rope_freqs.weight` where the file has them (Llama 3).
/// Shape: [rope_dims / 2]
/// Throws: `FileError` if there are not rope_dims / 2 positive factors.
std::vector<double> rope_frequencies(const LlamaConfig& config, const Gguf& gguf);

/// The tensor of that name.
/// Throws: `FileError` naming both shapes if it is not [rows, cols].
const Tensor& tensor_of_shape(const Gguf& gguf, const std::string& name, tinyllm::Index rows, tinyllm::Index cols);

}  // namespace engine
