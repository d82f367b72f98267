// SPDX-License-Identifier: Apache-2.0
// ScriptedModel: a model whose greedy answer the test writes down, and which records how it was called.
#pragma once

#include <tinyllm/cache/chunk_view.hpp>
#include <tinyllm/core/types.hpp>

#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace test_support {

using tinyllm::Index;
using tinyllm::Positions;
using tinyllm::RowMatrix;
using tinyllm::TokenId;

/// After the prompt, the highest logit is the script's next id; once it is through, its last one again.
class ScriptedModel {
 public:
  struct Config {
    Index num_hidden_layers = 2;
    Index num_attention_heads = 2;
    Index num_key_value_heads = 1;
    Index head_dim = 4;
    Index max_position_embeddings = 4096;
  };
  struct Call {
    std::vector<TokenId> ids;
    Positions positions;
  };

  ScriptedModel(std::vector<TokenId> script, Index vocab_size, std::size_t prompt_size)
      : script_(std::move(script)), vocab_size_(vocab_size), prompt_size_(prompt_size) {}

  Config config;
  std::vector<Call> calls;
  /// Throws in the middle of this call (counted from 0), between two layers.
  std::size_t fail_at_call = SIZE_MAX;

  RowMatrix forward(std::span<const TokenId> ids, Positions positions, auto& cache) {
    calls.push_back({{ids.begin(), ids.end()}, positions});
    const Index tokens = static_cast<Index>(ids.size());
    RowMatrix rows(tokens, config.num_key_value_heads * config.head_dim);
    for (Index layer = 0; layer < config.num_hidden_layers; ++layer) {
      if (layer == 1 && calls.size() - 1 == fail_at_call) throw std::runtime_error("the model failed");
      for (Index t = 0; t < tokens; ++t) rows.row(t).setConstant(static_cast<float>(ids[static_cast<std::size_t>(t)]));
      const RowMatrix keys = rows.array() + static_cast<float>(layer);
      const RowMatrix values = rows.array() - static_cast<float>(layer);
      using tinyllm::ChunkView;
      cache.update(layer, ChunkView::from_projection(keys, config.num_key_value_heads),
                   ChunkView::from_projection(values, config.num_key_value_heads));
    }
    const std::size_t known = static_cast<std::size_t>(positions.first() + positions.size());
    const std::size_t next = std::min(known - prompt_size_, script_.size() - 1);
    RowMatrix logits(1, vocab_size_);
    for (Index id = 0; id < vocab_size_; ++id) {
      logits(0, id) = static_cast<float>((id * 7 + static_cast<Index>(next) * 3) % 11) * 0.25F;
    }
    logits(0, script_[next]) = 8.0F;
    return logits;
  }

 private:
  std::vector<TokenId> script_;
  Index vocab_size_;
  std::size_t prompt_size_;
};

}  // namespace test_support
