// SPDX-License-Identifier: Apache-2.0
#include "run.hpp"

#include "batch.hpp"
#include "bundled_model.hpp"
#include "interrupt.hpp"
#include "prompt.hpp"
#include "report.hpp"
#include "score.hpp"
#include "storage.hpp"
#include "terminal.hpp"
#include "usage_error.hpp"
#include "watched_model.hpp"

#include "gguf.hpp"
#include "llama.hpp"
#include "tokenizer.hpp"

#include <tinyllm/tinyllm.hpp>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cli {
namespace {

using tinyllm::Index;
using tinyllm::TokenId;
using tinyllm::detail::message;
using Ids = std::vector<TokenId>;

constexpr int interrupted_exit_code = 130;  // as shells write an end by SIGINT

std::shared_ptr<const engine::Gguf> open_model(const Options& options) {
  return std::make_shared<const engine::Gguf>(options.model ? std::filesystem::path(*options.model) : bundled_model());
}

engine::Llama load_weights(const Options& options, std::shared_ptr<const engine::Gguf> gguf, tinyllm::ThreadPool& pool) {
  if (gguf->tensors().empty())
    throw UsageError(gguf->label() + ": has a vocabulary but no weights, enough for --tokenize only");
  return engine::Llama(std::move(gguf), pool, {.activations = options.activations, .exactness = options.exactness});
}

void check_length(const Options& options, Index tokens, Index context) {
  if (tokens == 0) throw UsageError("the prompt is empty");
  if (options.task == Task::score) {
    if (tokens < 2) throw UsageError("--score needs a prompt of at least two tokens, this one has one");
    if (tokens > context) throw UsageError(message("a prompt of ", tokens, " tokens is longer than the context of ", context));
  } else if (tokens >= context) {
    throw UsageError(message("a prompt of ", tokens, " tokens leaves no room for a token in the context of ", context));
  }
}

/// Calls f with the cache that the options ask for.
template <class F>
auto with_cache(const Options& options, const engine::Llama& model, F f) {
  if (options.cache == tinyllm::CacheMode::none) {
    tinyllm::RecomputeCache cache;
    return f(cache);
  }
  return with_storage(options.kv_dtype, [&]<class Dtype>() {
    if (options.cache == tinyllm::CacheMode::paged) {
      tinyllm::PagedKVCache<Dtype> cache(tinyllm::cache_dims(model));
      return f(cache);
    }
    tinyllm::KVCache<Dtype> cache(tinyllm::cache_dims(model));
    return f(cache);
  });
}

/// Runs to the end, to Ctrl-C or until nobody reads any more. Text goes out as it is made, unless it goes into a JSON object.
template <class Run>
std::vector<std::string> stream(Run& run, Output& output, bool json) {
  std::vector<std::string> pieces;
  while (!run.done()) {
    if (interrupted() || output.closed()) run.cancel();
    try {
      const std::string_view piece = run.step();
      if (piece.empty()) continue;
      pieces.emplace_back(piece);
      if (!json) output.write(piece);
    } catch (const Interrupted&) {
      run.cancel();  // the prompt went in by half; nothing was made
    }
  }
  return pieces;
}

template <class Cache>
Report generate(const Options& options, engine::Llama& model, const engine::Tokenizer& tokenizer, Ids prompt, Cache& cache,
                Output& output) {
  WatchedModel<engine::Llama> watched(model);
  const tinyllm::EosIds eos = options.ignore_eos ? tinyllm::EosIds::none() : tinyllm::EosIds();
  tinyllm::GenerationRun run(watched, tokenizer, std::move(prompt), options.sampling, cache, eos);
  Report report;
  report.pieces = stream(run, output, options.json);
  report.run = std::move(run).result();
  const auto logits = watched.prompt_logits();
  if (options.top_logits > 0 && !logits.empty()) report.prompt_logits = top_logits(logits, options.top_logits);
  return report;
}

template <class Cache>
Report score_prompt(const Options& options, engine::Llama& model, Ids prompt, Cache& cache) {
  const Score scored = score(model, prompt, cache);
  Report report;
  report.nll = scored.nll;
  report.run.timings.prefill_s = scored.seconds;
  report.run.stats = {.prompt_tokens = static_cast<Index>(prompt.size()),
                      .completion_tokens = 0,
                      .cached_tokens = 0,
                      .forward_calls = scored.forward_calls,
                      .forward_rows = scored.forward_rows,
                      .cache_bytes = cache.nbytes()};
  report.run.prompt_ids = std::move(prompt);
  if (options.top_logits > 0) report.prompt_logits = top_logits(scored.last_logits, options.top_logits);
  return report;
}

void print(const Options& options, const Report& report, Output& output) {
  if (options.json) {
    output.write(to_json(report));
  } else if (options.task == Task::score) {
    output.write(score_text(report));
  } else {
    output.end_line();
  }
  if (!options.json && report.prompt_logits) std::cerr << logits_text(*report.prompt_logits);
  if (options.stats) std::cerr << stats_text(report);
}

int run_lines(const Options& options, std::string_view text, std::shared_ptr<const engine::Gguf> gguf,
              const engine::Tokenizer& tokenizer, std::chrono::steady_clock::time_point started, Output& output) {
  std::vector<BatchPrompt> prompts = read_batch(text, tokenizer);
  tinyllm::ThreadPool pool(options.threads);
  engine::Llama model = load_weights(options, std::move(gguf), pool);
  const std::chrono::duration<double> load_time = std::chrono::steady_clock::now() - started;
  check_batch(prompts, model.config().max_position_embeddings);

  catch_interrupts();
  BatchReport report = answer_batch(options, model, tokenizer, std::move(prompts), output);
  report.load_s = load_time.count();
  for (Report& result : report.results) result.load_s = report.load_s;
  if (options.json) output.write(to_json(report));
  if (options.stats) std::cerr << stats_text(report);
  const bool cut_short = interrupted() && std::any_of(report.results.begin(), report.results.end(), [](const Report& result) {
                           return result.run.finish_reason == tinyllm::FinishReason::cancelled;
                         });
  return cut_short ? interrupted_exit_code : 0;
}

int run_model(const Options& options, Ids prompt, std::shared_ptr<const engine::Gguf> gguf, const engine::Tokenizer& tokenizer,
              std::chrono::steady_clock::time_point started, Output& output) {
  tinyllm::ThreadPool pool(options.threads);
  engine::Llama model = load_weights(options, std::move(gguf), pool);
  const std::chrono::duration<double> load_time = std::chrono::steady_clock::now() - started;
  check_length(options, static_cast<Index>(prompt.size()), model.config().max_position_embeddings);

  catch_interrupts();
  Report report = with_cache(options, model, [&](auto& cache) {
    return options.task == Task::score ? score_prompt(options, model, std::move(prompt), cache)
                                       : generate(options, model, tokenizer, std::move(prompt), cache, output);
  });
  report.load_s = load_time.count();
  print(options, report, output);
  const bool cut_short = report.run.finish_reason == tinyllm::FinishReason::cancelled && interrupted();
  return cut_short ? interrupted_exit_code : 0;
}

}  // namespace

int run(const Options& options) {
  const std::string text = read_prompt(options.prompt);
  const auto started = std::chrono::steady_clock::now();
  const auto gguf = open_model(options);
  const engine::Tokenizer tokenizer(*gguf);
  Output output;
  if (options.task == Task::tokenize) {
    output.write(to_json(tokenizer.encode(text, {.add_special = false})));
    return 0;
  }
  if (options.task == Task::batch) return run_lines(options, text, gguf, tokenizer, started, output);
  Ids prompt = tokenizer.encode(text);
  try {
    return run_model(options, std::move(prompt), gguf, tokenizer, started, output);
  } catch (const Interrupted&) {
    std::cerr << "generate: interrupted\n";
    return interrupted_exit_code;
  }
}

}  // namespace cli
