// SPDX-License-Identifier: Apache-2.0
#include "llama_config.hpp"

#include "quants.hpp"

#include <cmath>
#include <sstream>

namespace engine {
namespace {

using tinyllm::Index;

template <class... Parts>
[[noreturn]] void fail(const Gguf& gguf, const Parts&... parts) {
  std::ostringstream text;
  text << gguf.label() << ": ";
  (text << ... << parts);
  throw FileError(text.str());
}

// No size of a real model is larger, and products of two of them stay far from overflow.
constexpr std::int64_t largest_size = std::int64_t{1} << 30;

Index checked_size(const Gguf& gguf, const std::string& key, std::int64_t value) {
  if (value < 1 || value > largest_size) fail(gguf, key, " is ", value, "; it must be at least 1 and at most ", largest_size);
  return static_cast<Index>(value);
}

Index size_or(const Gguf& gguf, const std::string& key, Index otherwise) {
  const auto value = gguf.integer(key);
  return value ? checked_size(gguf, key, *value) : otherwise;
}

Index required_size(const Gguf& gguf, const std::string& key) {
  const auto value = gguf.integer(key);
  if (!value) fail(gguf, key, " is missing");
  return checked_size(gguf, key, *value);
}

double positive(const Gguf& gguf, const std::string& key, double value) {
  if (!(value > 0) || !std::isfinite(value)) fail(gguf, key, " is ", value, "; it must be positive");
  return value;
}

void refuse_other_models(const Gguf& gguf) {
  const auto architecture = gguf.string("general.architecture");
  if (!architecture) fail(gguf, "general.architecture is missing");
  if (*architecture != "llama") fail(gguf, "architecture ", in_quotes(*architecture), " is not supported (llama is)");
  if (gguf.integer("llama.expert_count").value_or(0) != 0) fail(gguf, "mixtures of experts are not supported");
  // What is not computed must not be ignored either.
  for (const Tensor& tensor : gguf.tensors()) {
    if (tensor.name.ends_with(".bias")) fail(gguf, "tensor ", in_quotes(tensor.name), ": biases are not supported");
  }
}

void read_heads(const Gguf& gguf, LlamaConfig& config) {
  config.num_attention_heads = required_size(gguf, "llama.attention.head_count");
  if (gguf.is_array("llama.attention.head_count_kv")) fail(gguf, "another number of kv heads in each layer is not supported");
  config.num_key_value_heads = size_or(gguf, "llama.attention.head_count_kv", config.num_attention_heads);
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fail(gguf, config.num_attention_heads, " query heads do not divide into groups for ", config.num_key_value_heads,
         " kv heads");
  }
  config.head_dim = size_or(gguf, "llama.attention.key_length", config.hidden_size / config.num_attention_heads);
  if (!gguf.has("llama.attention.key_length") && config.hidden_size % config.num_attention_heads != 0) {
    fail(gguf, "llama.embedding_length ", config.hidden_size, " does not divide by ", config.num_attention_heads, " heads");
  }
  const Index value_length = size_or(gguf, "llama.attention.value_length", config.head_dim);
  if (value_length != config.head_dim) {
    fail(gguf, "keys of ", config.head_dim, " and values of ", value_length, " are not supported (equal widths are)");
  }
}

void read_rope(const Gguf& gguf, LlamaConfig& config) {
  config.rope_theta = positive(gguf, "llama.rope.freq_base", gguf.number("llama.rope.freq_base").value_or(10000.0));
  config.rope_dims = size_or(gguf, "llama.rope.dimension_count", config.head_dim);
  if (config.rope_dims % 2 != 0 || config.rope_dims > config.head_dim) {
    fail(gguf, "llama.rope.dimension_count is ", config.rope_dims, "; it must be even and at most the head's ",
         config.head_dim);
  }
  const auto scaling = gguf.string("llama.rope.scaling.type").value_or("none");
  if (scaling == "linear") {
    config.rope_scale = 1 / positive(gguf, "llama.rope.scaling.factor", gguf.number("llama.rope.scaling.factor").value_or(1.0));
  } else if (scaling != "none") {
    fail(gguf, "rope scaling ", in_quotes(scaling), " is not supported (linear is)");
  }
}

}  // namespace

LlamaConfig read_llama_config(const Gguf& gguf) {
  refuse_other_models(gguf);
  LlamaConfig config;
  config.num_hidden_layers = required_size(gguf, "llama.block_count");
  config.hidden_size = required_size(gguf, "llama.embedding_length");
  config.intermediate_size = required_size(gguf, "llama.feed_forward_length");
  config.max_position_embeddings = required_size(gguf, "llama.context_length");
  read_heads(gguf, config);
  const auto eps = gguf.number("llama.attention.layer_norm_rms_epsilon");
  if (!eps) fail(gguf, "llama.attention.layer_norm_rms_epsilon is missing");
  config.rms_norm_eps = static_cast<float>(positive(gguf, "llama.attention.layer_norm_rms_epsilon", *eps));
  read_rope(gguf, config);
  config.vocab_size = checked_size(gguf, "rows of token_embd.weight", gguf.tensor("token_embd.weight").rows);
  return config;
}

std::vector<double> rope_frequencies(const LlamaConfig& config, const Gguf& gguf) {
  const Index pairs = config.rope_dims / 2;
  std::vector<double> frequencies;
  frequencies.reserve(static_cast<std::size_t>(pairs));
  for (Index i = 0; i < pairs; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config.rope_dims);
    frequencies.push_back(std::pow(config.rope_theta, exponent) * config.rope_scale);
  }
  if (gguf.find("rope_freqs.weight") == nullptr) return frequencies;
  const Tensor& tensor = tensor_of_shape(gguf, "rope_freqs.weight", 1, pairs);
  std::vector<float> factors(frequencies.size());
  dequantize_row(tensor.type, tensor.data.data(), factors);
  for (std::size_t i = 0; i < factors.size(); ++i) {
    frequencies[i] /= positive(gguf, "a factor in rope_freqs.weight", static_cast<double>(factors[i]));
  }
  return frequencies;
}

const Tensor& tensor_of_shape(const Gguf& gguf, const std::string& name, Index rows, Index cols) {
  const Tensor& tensor = gguf.tensor(name);
  if (tensor.rows != rows || tensor.cols != cols) {
    fail(gguf, "tensor ", in_quotes(name), " is [rows, cols] = [", tensor.rows, ", ", tensor.cols,
         "], the configuration says [", rows, ", ", cols, "]");
  }
  return tensor;
}

}  // namespace engine
