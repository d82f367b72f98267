// SPDX-License-Identifier: Apache-2.0
// Scheduler: many requests through one model, new ones at any time: continuous batching over a pool of cache blocks.
//
//     auto pool = std::make_shared<BlockPool<Eigen::half>>(pool_dims(cache_dims(model), n_blocks));
//     Scheduler scheduler(model, tokenizer, pool, {.token_budget = 512});
//     std::future<Generation> answer = scheduler.submit(prompt_ids, params, [](std::string_view piece) { send(piece); });
//     scheduler.run();                                   // or step by step; on a thread: while (scheduler.wait(stop)) step();
//     answer.get().text;
//
// Each pass takes one token of every running request and chunks of prompts, up to the token budget. A request comes to the same
// ids as alone, whatever runs beside it, if the model gives a row the same logits in any batch. When blocks run out the
// youngest request is set aside and computed again later. A request that the model refuses ends alone. Model and tokenizer must
// outlive the scheduler; a request whose scheduler ends first has a broken promise.
// Source: Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", 2022; Agrawal et al.,
//   "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", 2024.
// Threads: `submit` from any thread, everything else from one.
#pragma once

#include <tinyllm/batching/batch_causal_lm.hpp>
#include <tinyllm/batching/inbox.hpp>
#include <tinyllm/batching/request.hpp>
#include <tinyllm/cache/block_pool.hpp>
#include <tinyllm/cache/paged_kv_cache.hpp>
#include <tinyllm/cache/prefix_cache.hpp>
#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>
#include <tinyllm/generate/causal_lm.hpp>
#include <tinyllm/generate/completion.hpp>
#include <tinyllm/generate/generation.hpp>
#include <tinyllm/sampling/params.hpp>
#include <tinyllm/text/tokenizer.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <stop_token>
#include <string_view>
#include <utility>
#include <vector>

namespace tinyllm {

struct SchedulerOptions {
  /// Most rows of one pass: what bounds how long running requests wait for a long prompt.
  Index token_budget = 512;
  /// Most requests that run at the same time; others wait.
  Index max_running = 256;
  /// Prompts begin with the blocks that earlier ones have in common with them.
  bool share_prefixes = true;
};

/// Counts since the scheduler was made.
struct SchedulerStats {
  Index passes = 0;       ///< forward passes
  Index rows = 0;         ///< tokens that went through the model
  Index preemptions = 0;  ///< times that a request was set aside for want of blocks
};

template <class Model, Tokenizer Tok, StorageType Dtype>
class Scheduler {
 public:
  using Cache = PagedKVCache<Dtype>;
  using Pool = BlockPool<Dtype>;

  /// Throws: std::invalid_argument if the pool is null, or the token budget or max_running is below 1.
  Scheduler(Model& model, const Tok& tokenizer, std::shared_ptr<Pool> pool, const SchedulerOptions& options = {})
      : model_(model), tokenizer_(tokenizer), pool_(std::move(pool)), options_(options) {
    check_batch_causal_lm<Model, Cache>();
    if (pool_ == nullptr) throw std::invalid_argument("a scheduler needs a pool");
    if (options.token_budget < 1 || options.max_running < 1) {
      throw std::invalid_argument(detail::message("a scheduler of ", options.token_budget, " rows a pass and ",
                                                  options.max_running, " requests does nothing"));
    }
    if (options.share_prefixes) prefixes_.emplace(pool_);
  }
  Scheduler(Model&, const Tok&&, std::shared_ptr<Pool>, const SchedulerOptions& = {}) = delete;
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Takes a request in. `on_text` is called during steps with text that became final; it may return false to cancel; what it
  /// throws ends this request alone and is what its future throws. `params.cancel` cancels too. Requests share no prefix with
  /// those of another salt.
  /// Throws: std::invalid_argument if the prompt is empty or leaves no room for a token in the model's context or the pool, or
  ///   a parameter makes no sense.
  template <class OnText = std::nullptr_t>
  std::future<Generation> submit(std::vector<TokenId> prompt, const SamplingParams& params = {}, OnText on_text = {},
                                 const EosIds& eos_ids = {}, PrefixSalt salt = 0) {
    Completion<Tok> completion(tokenizer_, std::move(prompt), params, context(), eos_ids);
    auto entry = std::make_unique<Entry>(std::move(completion), Entry::listener(std::move(on_text)), salt);
    std::future<Generation> result = entry->future();
    inbox_.push(std::move(entry));
    return result;
  }

  /// The same behind a prompt of text.
  template <class OnText = std::nullptr_t>
  std::future<Generation> submit(std::string_view prompt, const SamplingParams& params = {}, OnText on_text = {},
                                 const EosIds& eos_ids = {}, PrefixSalt salt = 0) {
    auto&& ids = tokenizer_.encode(prompt);
    return submit(std::vector<TokenId>(std::ranges::begin(ids), std::ranges::end(ids)), params, std::move(on_text), eos_ids,
                  salt);
  }

  /// One forward pass for all that can take part in it. False if there is nothing left to do.
  /// Throws: whatever the model throws; the requests are then as they were. Each of those that took part gets a pass of its own
  ///   in the next step, besides one for all others; if that throws too, the request ends, and its future throws it.
  bool step() {
    receive();
    end_cancelled();
    plan();
    run_passes();
    return n_running() + n_waiting() > 0;
  }

  /// Steps until nothing is left to do.
  /// Throws: as step
  void run() {
    while (step()) {
    }
  }

  /// Waits until there is something to do; false if `stop` was requested first.
  bool wait(std::stop_token stop) { return n_running() + n_waiting() > 0 || inbox_.wait(std::move(stop)); }

  Index n_running() const { return static_cast<Index>(running_.size()); }
  /// Requests that have come and have no cache, whether new or set aside.
  Index n_waiting() const { return static_cast<Index>(waiting_.size()) + inbox_.size(); }
  const SchedulerStats& stats() const { return stats_; }
  /// What prefixes were found; all zero if they are not shared.
  PrefixCacheStats prefix_stats() const { return prefixes_ ? prefixes_->stats() : PrefixCacheStats{}; }
  const std::shared_ptr<Pool>& pool() const { return pool_; }

 private:
  using Clock = std::chrono::steady_clock;
  using Entry = Request<Tok, Dtype>;
  using Entries = std::vector<std::unique_ptr<Entry>>;  // the oldest first

  // One request's part of the pass.
  struct Part {
    Entry* request;
    Index held;  // positions in its cache before
    Index rows;
  };

  // Most positions of one request.
  Index context() const { return std::min(max_positions(model_), pool_->capacity()); }

  static void insert(Entries& entries, std::unique_ptr<Entry> entry) {
    const auto behind =
        std::find_if(entries.begin(), entries.end(), [&](const auto& other) { return other->arrival() > entry->arrival(); });
    entries.insert(behind, std::move(entry));
  }

  void receive() {
    const std::size_t before = waiting_.size();
    inbox_.take(waiting_);
    for (std::size_t i = before; i < waiting_.size(); ++i) waiting_[i]->arrive(next_arrival_++);
  }

  void settle_over() {
    for (Entries* entries : {&running_, &waiting_}) {
      std::erase_if(*entries, [](const auto& entry) {
        if (!entry->over()) return false;
        entry->settle();
        return true;
      });
    }
  }

  void end_cancelled() {
    for (Entries* entries : {&running_, &waiting_}) {
      for (const auto& entry : *entries) {
        if (!entry->over() && entry->completion().cancel_requested()) {
          guarded(*entry, [&] { entry->deliver(entry->completion().stop()); });
        }
      }
    }
    settle_over();
  }

  // What a client or a row of logits throws ends that request and no other.
  template <class F>
  static void guarded(Entry& entry, F f) {
    try {
      f();
    } catch (...) {
      entry.fail(std::current_exception());
    }
  }

  void plan() {
    parts_.clear();
    batch_.clear();
    const Index preempted_before = stats_.preemptions;
    Index budget = options_.token_budget;
    for (Index i = 0; i < n_running() && budget > 0; ++i) {
      Entry& entry = *running_[static_cast<std::size_t>(i)];
      // Those behind it get a row each, as long as there are as many.
      const Index rows = std::min(entry.pending(), std::max<Index>(budget - (n_running() - 1 - i), 1));
      if (!make_room(i, rows)) break;
      add(entry, rows);
      budget -= rows;
    }
    if (stats_.preemptions == preempted_before) admit(budget);
    std::partition(parts_.begin(), parts_.end(), [](const Part& part) { return part.request->suspect(); });
    for (const Part& part : parts_) {
      const Index end = part.held + part.rows;
      batch_.push_back(
          {.ids = part.request->tokens().subspan(static_cast<std::size_t>(part.held), static_cast<std::size_t>(part.rows)),
           .positions = part.request->cache().positions(part.rows),
           .cache = &part.request->cache(),
           .n_logits = end == part.request->completion().n_tokens() ? 1 : 0});
    }
  }

  void add(Entry& entry, Index rows) { parts_.push_back({&entry, entry.cache().seq_len(), rows}); }

  // Blocks for the i-th running request; younger ones are set aside for it, or at last itself.
  bool make_room(Index i, Index rows) {
    Entry& entry = *running_[static_cast<std::size_t>(i)];
    while (!entry.cache().reserve(rows)) {
      if (n_running() == 1) {  // somebody else holds the pool's blocks
        fail_for_blocks(entry, entry.cache().seq_len(), rows, entry.cache().blocks_missing(rows));
        return false;
      }
      const bool itself = n_running() == i + 1;
      running_.back()->set_aside();
      insert(waiting_, std::move(running_.back()));
      running_.pop_back();
      ++stats_.preemptions;
      if (itself) return false;
    }
    return true;
  }

  void admit(Index budget) {
    const Index most = std::min(options_.max_running, options_.token_budget);  // a row each
    for (std::size_t i = 0; i < waiting_.size() && budget > 0 && n_running() < most;) {
      Entry& entry = *waiting_[i];
      if (prefix_on_its_way(entry)) {
        ++i;
        continue;
      }
      if (!begin(entry)) {
        if (n_running() > 0) break;
        fail_for_blocks(entry, 0, entry.completion().n_tokens(), blocks_needed(entry));
        ++i;
        continue;
      }
      const Index rows = std::min(entry.pending(), budget);
      insert(running_, std::move(waiting_[i]));
      waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(i));
      add(entry, rows);
      budget -= rows;
    }
  }

  Index blocks_for(Index positions) const { return (positions + pool_->block_size() - 1) / pool_->block_size(); }

  // Of the blocks that can be had, those that a waiting request takes.
  Index blocks_needed(const Entry& entry) const {
    return prefixes_ ? prefixes_->blocks_needed(entry.tokens(), entry.salt())
                     : blocks_for(static_cast<Index>(entry.tokens().size()));
  }

  // Gives a waiting request a cache, if there are blocks for all that is known of it.
  bool begin(Entry& entry) {
    if (blocks_needed(entry) > pool_->ledger().available()) return false;
    entry.begin(pool_, context());
    if (prefixes_) prefixes_->take(entry.tokens(), entry.cache(), entry.salt());
    [[maybe_unused]] const bool reserved = entry.cache().reserve(entry.pending());
    TINYLLM_ASSERT(reserved);
    GenerationStats& stats = entry.completion().stats();
    if (stats.forward_calls == 0) stats.cached_tokens = entry.cache().seq_len();
    return true;
  }

  // Whether a running request is about to compute blocks that this one could take: it waits for them.
  bool prefix_on_its_way(Entry& entry) {
    if (!prefixes_) return false;
    const std::span<const TokenId> tokens = entry.tokens();
    std::optional<Index> known;
    for (const auto& other : running_) {
      if (other->salt() != entry.salt() || other->pending() == 1) continue;
      const std::span<const TokenId> theirs = other->tokens();
      const auto common = std::mismatch(tokens.begin(), tokens.end(), theirs.begin(), theirs.end()).first - tokens.begin();
      const Index blocks = common / pool_->block_size() * pool_->block_size();
      if (blocks <= other->cache().seq_len()) continue;
      if (!known) known = prefixes_->match(tokens, entry.salt());
      if (std::min(blocks, static_cast<Index>(tokens.size()) - 1) > *known) return true;
    }
    return false;
  }

  // `needed` blocks are more than can be had.
  void fail_for_blocks(Entry& entry, Index held, Index rows, Index needed) {
    const BlockLedger& ledger = pool_->ledger();
    const Index reachable = (blocks_for(held + rows) - needed + ledger.available()) * pool_->block_size();
    entry.fail(
        std::make_exception_ptr(OutOfBlocks(rows, held, std::clamp(reachable, held, context()),
                                            {.needed = needed, .available = ledger.available(), .size = ledger.size()})));
  }

  // Those that are suspect one after the other, the others together.
  void run_passes() {
    std::size_t i = 0;
    for (; i < parts_.size() && parts_[i].request->suspect(); ++i) {
      guarded(*parts_[i].request, [&] { pass(std::span(parts_).subspan(i, 1), std::span(batch_).subspan(i, 1)); });
    }
    settle_over();
    if (i < parts_.size()) pass(std::span(parts_).subspan(i), std::span(batch_).subspan(i));
    settle_over();
  }

  // If it throws, all that took part are as they were, but suspect.
  void pass(std::span<const Part> parts, std::span<const BatchEntry<Cache>> batch) {
    const auto started = Clock::now();
    try {
      decltype(auto) logits = model_.forward_batch(batch);
      Index wanted = 0;
      for (const auto& entry : batch) wanted += entry.n_logits;
      if (logits.rows() != wanted) {
        throw std::invalid_argument(
            detail::message("scheduler: the model gave logits for ", logits.rows(), " rows of ", wanted));
      }
      count(parts, std::chrono::duration<double>(Clock::now() - started).count());
      Index row = 0;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        Entry& entry = *parts[i].request;
        if (batch[i].n_logits == 0) {
          publish(entry, parts[i]);
          continue;
        }
        guarded(entry, [&] {
          const Eigen::Ref<const Eigen::RowVectorXf> scores(logits.row(row));
          const Sampled next =
              entry.completion().choose(std::span<const float>(scores.data(), static_cast<std::size_t>(scores.size())));
          publish(entry, parts[i]);
          entry.deliver(entry.completion().take(next));
        });
        ++row;
      }
    } catch (...) {
      for (const Part& part : parts) {
        part.request->cache().truncate(part.held);
        part.request->suspect(true);
      }
      throw;
    }
  }

  void count(std::span<const Part> parts, double seconds) {
    ++stats_.passes;
    for (const Part& part : parts) {
      TINYLLM_ASSERT(part.request->cache().seq_len() == part.held + part.rows);
      stats_.rows += part.rows;
      GenerationStats& stats = part.request->completion().stats();
      ++stats.forward_calls;
      stats.forward_rows += part.rows;
      part.request->completion().seconds() += seconds;
      part.request->suspect(false);
    }
  }

  // Blocks that this pass has filled can be taken by others from now on.
  void publish(Entry& entry, const Part& part) {
    const Index size = pool_->block_size();
    if (!prefixes_ || part.held / size == (part.held + part.rows) / size) return;
    prefixes_->publish(entry.tokens(), entry.cache(), entry.salt());
  }

  Model& model_;
  const Tok& tokenizer_;
  std::shared_ptr<Pool> pool_;
  SchedulerOptions options_;
  std::optional<PrefixCache> prefixes_;
  Entries waiting_;
  Entries running_;
  std::vector<Part> parts_;
  std::vector<BatchEntry<Cache>> batch_;  // beside parts_
  SchedulerStats stats_;
  Inbox<std::unique_ptr<Entry>> inbox_;
  Index next_arrival_ = 0;
};

}  // namespace tinyllm
