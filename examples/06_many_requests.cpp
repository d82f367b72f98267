// SPDX-License-Identifier: Apache-2.0
// Many requests through one model: they share a pool of blocks, and what their prompts have in common is computed once.
#include "llama.hpp"
#include "tokenizer.hpp"

#include <tinyllm/tinyllm.hpp>

#include <iostream>

using namespace tinyllm;

int main() {
  const auto gguf = std::make_shared<const engine::Gguf>(BUNDLED_MODEL);
  const engine::Tokenizer tokenizer(*gguf);
  ThreadPool threads(2);
  engine::Llama model(gguf, threads);

  const auto pool = std::make_shared<BlockPool<Eigen::half>>(pool_dims(cache_dims(model), 64));  // blocks of 16 positions
  Scheduler scheduler(model, tokenizer, pool, {.token_budget = 128});

  std::vector<std::future<Generation>> answers;
  for (const char* animal : {" Wolf", " Fox", " Lion", " Crow"}) {
    const std::string prompt =
        std::string("Once upon a time, when all the animals could still speak with one another, a") + animal;
    answers.push_back(scheduler.submit(prompt, {.max_tokens = 24, .stop = {"."}}));
  }
  scheduler.run();  // or step by step, while new requests arrive

  for (auto& answer : answers) std::cout << '-' << answer.get().text << '\n';
  std::cout << scheduler.stats().rows << " rows in " << scheduler.stats().passes << " passes, "
            << scheduler.prefix_stats().hit_tokens << " tokens of prompts found in the cache, " << pool->ledger().held()
            << " blocks still held\n";
}
