// SPDX-License-Identifier: Apache-2.0
// Speculative decoding's bookkeeping: draft tokens go through the model at once, and those it would not have chosen go back.
#include "llama.hpp"
#include "tokenizer.hpp"

#include <tinyllm/tinyllm.hpp>

#include <iostream>

using namespace tinyllm;

int main() {
  const auto gguf = std::make_shared<const engine::Gguf>(BUNDLED_MODEL);
  const engine::Tokenizer tokenizer(*gguf);
  ThreadPool pool(2);
  engine::Llama model(gguf, pool);
  KVCache<float> cache(cache_dims(model));

  std::vector<TokenId> known = tokenizer.encode("Once upon a time a Wolf");
  const std::vector<TokenId> prompt(known.begin(), known.end() - 1);
  model.forward(prompt, cache.positions(static_cast<Index>(prompt.size())), cache);

  // The last known token and the draft, in one pass; row i says what follows the i-th of them.
  const std::vector<TokenId> draft = tokenizer.encode(" resolved to disguise his horse");
  std::vector<TokenId> chunk = {known.back()};
  chunk.insert(chunk.end(), draft.begin(), draft.end());
  const RowMatrix& logits = model.forward_all(chunk, cache.positions(static_cast<Index>(chunk.size())), cache);

  Index row = 0;
  for (bool agreed = true; agreed; ++row) {
    const std::span<const float> scores(logits.row(row).data(), static_cast<std::size_t>(logits.cols()));
    known.push_back(greedy_choice(scores));
    agreed = row < static_cast<Index>(draft.size()) && known.back() == draft[static_cast<std::size_t>(row)];
  }
  cache.truncate(static_cast<Index>(known.size()) - 1);  // tokens known = cache length + 1, however many were right

  std::cout << row - 1 << " of " << draft.size() << " draft tokens accepted: " << tokenizer.decode(known) << '\n'
            << known.size() << " tokens known, " << cache.seq_len() << " in the cache\n";
}
