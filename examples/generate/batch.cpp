// SPDX-License-Identifier: Apache-2.0
#include "batch.hpp"

#include "interrupt.hpp"
#include "storage.hpp"
#include "usage_error.hpp"

#include <tinyllm/tinyllm.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <stop_token>
#include <string>
#include <utility>

namespace cli {
namespace {

using tinyllm::Index;
using tinyllm::detail::message;

// What the pool of all caches may reserve; its pages are touched only as they fill.
constexpr std::size_t most_pool_bytes = std::size_t{1} << 31;

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\v\f\r") == std::string_view::npos; }

// Enough blocks for all requests at once if that is not too much memory, and always for the longest one.
template <class Dtype>
Index pool_blocks(const Options& options, const tinyllm::CacheDims& dims, const std::vector<BatchPrompt>& prompts) {
  const auto block_bytes = tinyllm::BlockPool<Dtype>(tinyllm::pool_dims(dims, 1)).block_nbytes();
  const Index most_tokens = std::clamp<Index>(options.sampling.max_tokens.value_or(dims.max_len), 1, dims.max_len);
  Index all = 0;
  Index longest = 0;
  for (const BatchPrompt& prompt : prompts) {
    const Index positions = std::min(dims.max_len, static_cast<Index>(prompt.ids.size()) + most_tokens);
    const Index blocks = (positions - 1) / tinyllm::default_block_size + 1;
    all += blocks;
    longest = std::max(longest, blocks);
  }
  return std::clamp(static_cast<Index>(most_pool_bytes / block_bytes), longest, all);
}

/// A request that has not ended.
struct Open {
  std::size_t number;
  Index line;
  std::future<tinyllm::Generation> answer;
};

template <class Dtype>
BatchReport answer(const Options& options, engine::Llama& model, const engine::Tokenizer& tokenizer,
                   std::vector<BatchPrompt> prompts, Output& output) {
  const tinyllm::CacheDims dims = tinyllm::cache_dims(model);
  const auto pool =
      std::make_shared<tinyllm::BlockPool<Dtype>>(tinyllm::pool_dims(dims, pool_blocks<Dtype>(options, dims, prompts)));
  tinyllm::Scheduler scheduler(model, tokenizer, pool);
  BatchReport report;
  report.results.resize(prompts.size());

  std::stop_source cancel;
  tinyllm::SamplingParams params = options.sampling;
  params.cancel = cancel.get_token();
  const tinyllm::EosIds eos = options.ignore_eos ? tinyllm::EosIds::none() : tinyllm::EosIds();
  std::vector<Open> open;
  for (BatchPrompt& prompt : prompts) {
    std::vector<std::string>& pieces = report.results[open.size()].pieces;
    open.push_back(
        {open.size(), prompt.line,
         scheduler.submit(
             std::move(prompt.ids), params, [&pieces](std::string_view piece) { pieces.emplace_back(piece); }, eos)});
  }

  ProgressBar bar("batch", static_cast<Index>(open.size()));
  bar.advance(0);
  const auto take_ended = [&](Open& request) {
    if (request.answer.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
    tinyllm::Generation& run = report.results[request.number].run;
    run = request.answer.get();
    bar.hide();
    const bool unbegun = run.finish_reason == tinyllm::FinishReason::cancelled && run.ids.empty();
    if (!options.json && !unbegun) output.write(message(request.line, '\t', run.text, '\n'));
    bar.advance(1);
    return true;
  };
  const auto started = std::chrono::steady_clock::now();
  for (bool more = true; more;) {
    if (interrupted() || output.closed()) cancel.request_stop();
    more = scheduler.step();
    const auto used = static_cast<std::size_t>(pool->ledger().size() - pool->ledger().free());
    report.cache_bytes = std::max(report.cache_bytes, used * pool->block_nbytes());
    std::erase_if(open, take_ended);
  }
  report.total_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  report.forward_calls = scheduler.stats().passes;
  report.forward_rows = scheduler.stats().rows;
  report.preemptions = scheduler.stats().preemptions;
  return report;
}

}  // namespace

std::vector<BatchPrompt> read_batch(std::string_view text, const engine::Tokenizer& tokenizer) {
  std::vector<BatchPrompt> prompts;
  for (Index number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!is_blank(line)) prompts.push_back({number, tokenizer.encode(line)});
  }
  if (prompts.empty()) throw UsageError("--batch: there is no prompt, all lines are blank");
  return prompts;
}

void check_batch(const std::vector<BatchPrompt>& prompts, Index context) {
  for (const BatchPrompt& prompt : prompts) {
    const auto tokens = static_cast<Index>(prompt.ids.size());
    if (tokens >= context) {
      throw UsageError(message("line ", prompt.line, ": a prompt of ", tokens,
                               " tokens leaves no room for a token in the context of ", context));
    }
  }
}

BatchReport answer_batch(const Options& options, engine::Llama& model, const engine::Tokenizer& tokenizer,
                         std::vector<BatchPrompt> prompts, Output& output) {
  return with_storage(options.kv_dtype,
                      [&]<class Dtype>() { return answer<Dtype>(options, model, tokenizer, std::move(prompts), output); });
}

}  // namespace cli
