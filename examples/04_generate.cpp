// SPDX-License-Identifier: Apache-2.0
#include "llama.hpp"  // the example engine; any model with a forward pass will do
#include "tokenizer.hpp"

#include <tinyllm/tinyllm.hpp>

#include <iostream>

int main() {
  const auto gguf = std::make_shared<const engine::Gguf>(BUNDLED_MODEL);
  const engine::Tokenizer tokenizer(*gguf);
  tinyllm::ThreadPool pool(2);
  engine::Llama model(gguf, pool);

  tinyllm::KVCache<Eigen::half> cache(tinyllm::cache_dims(model));
  const auto out = tinyllm::generate(model, tokenizer, "Once upon a time", {.max_tokens = 64, .stop = {"."}}, cache,
                                     [](std::string_view piece) { std::cout << piece << std::flush; });
  std::cout << "\n[" << out.ids.size() << " tokens, " << to_string(out.finish_reason) << "; " << cache.seq_len()
            << " positions in the cache]\n";
}
