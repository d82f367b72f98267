// SPDX-License-Identifier: Apache-2.0
// Request: what a scheduler knows of one request: its completion, its cache while it runs, and who waits for its text.
//
//     Request<Tok, float> request(std::move(completion), on_text, salt);
//     request.begin(pool, context);                        // it has a cache now
//     request.deliver(request.completion().take(next));    // the client's exceptions end this request alone
//     if (request.over()) request.settle();                // its future is ready
//
// Internal to batching. Threads: one at a time.
#pragma once

#include <tinyllm/cache/block_pool.hpp>
#include <tinyllm/cache/paged_kv_cache.hpp>
#include <tinyllm/cache/prefix_cache.hpp>
#include <tinyllm/core/dtype.hpp>
#include <tinyllm/core/types.hpp>
#include <tinyllm/generate/completion.hpp>
#include <tinyllm/generate/generation.hpp>
#include <tinyllm/text/tokenizer.hpp>

#include <concepts>
#include <cstddef>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tinyllm {

template <Tokenizer Tok, StorageType Dtype>
class Request {
 public:
  using Cache = PagedKVCache<Dtype>;
  /// Receives pieces of text; false: no more of them.
  using OnText = std::function<bool(std::string_view)>;

  Request(Completion<Tok> completion, OnText on_text, PrefixSalt salt)
      : completion_(std::move(completion)), on_text_(std::move(on_text)), salt_(salt) {}

  /// A client's callback, which may return nothing, as OnText.
  template <class F>
  static OnText listener(F on_text) {
    if constexpr (std::same_as<F, std::nullptr_t>) {
      return nullptr;
    } else {
      static_assert(std::invocable<F&, std::string_view>, "tinyllm: on_text must take a std::string_view");
      static_assert(std::copy_constructible<F>,
                    "tinyllm: on_text must be copyable: capture a std::shared_ptr rather than a std::unique_ptr");
      if constexpr (std::same_as<std::invoke_result_t<F&, std::string_view>, bool>) {
        return on_text;
      } else {
        return [call = std::move(on_text)](std::string_view piece) mutable {
          call(piece);
          return true;
        };
      }
    }
  }

  std::future<Generation> future() { return result_.get_future(); }
  Completion<Tok>& completion() { return completion_; }
  PrefixSalt salt() const { return salt_; }
  /// Its place in the order in which requests came.
  Index arrival() const { return arrival_; }
  void arrive(Index arrival) { arrival_ = arrival; }

  /// It runs from now on, with an empty cache of at most `context` positions.
  void begin(const std::shared_ptr<BlockPool<Dtype>>& pool, Index context) { cache_.emplace(pool, context); }
  /// It waits again: its cache is gone, its completion stays.
  void set_aside() { cache_.reset(); }
  /// Pre: it runs
  Cache& cache() { return *cache_; }
  std::span<const TokenId> tokens() const { return completion_.tokens(); }
  /// Tokens that are known and not in the cache.
  /// Pre: it runs
  Index pending() const { return completion_.n_tokens() - cache_->seq_len(); }

  /// Gives text to the client, who may end the request by it: with false, or by an exception.
  void deliver(std::string_view piece) {
    if (piece.empty() || !on_text_ || on_text_(piece)) return;
    on_text_ = nullptr;
    if (!completion_.done()) static_cast<void>(completion_.stop());
  }

  /// The last pass that it took part in threw, and it may be why: its next one is its own.
  bool suspect() const { return suspect_; }
  void suspect(bool suspect) { suspect_ = suspect; }

  /// Something threw that concerns this request alone.
  void fail(std::exception_ptr error) { error_ = std::move(error); }

  bool over() const { return completion_.done() || error_ != nullptr; }
  /// Makes its future ready and gives its blocks back.
  /// Pre: over(), once
  void settle() {
    if (cache_) completion_.stats().cache_bytes = cache_->nbytes();
    cache_.reset();
    if (error_ != nullptr) {
      result_.set_exception(error_);
    } else {
      result_.set_value(std::move(completion_).result());
    }
  }

 private:
  Completion<Tok> completion_;
  OnText on_text_;
  PrefixSalt salt_;
  Index arrival_ = 0;
  std::optional<Cache> cache_;
  std::promise<Generation> result_;
  std::exception_ptr error_;
  bool suspect_ = false;
};

}  // namespace tinyllm
