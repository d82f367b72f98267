// SPDX-License-Identifier: Apache-2.0
// An executor: what runs the independent tasks of one step, perhaps in parallel, and returns when all are done.
//
//     tinyllm::ThreadPool pool(2);                                       // the caller is one of the two threads
//     pool.run(n_rows, [&](tinyllm::Index row) { y[row] = dot(w, row, x); });
//     // every row is written here, whichever thread did it
//
// Units: `concurrency()` counts threads, the caller included; tasks are numbered 0, 1, ..., n_tasks - 1.
// Errors: the first exception that a task throws leaves `run()` once no task is running any more.
// Lifetime: a pool's destructor joins its threads; it must not run while `run()` does.
#pragma once

#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <stdexcept>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace tinyllm {

/// Anything that runs `f(i)` once for each i in [0, n_tasks) and returns when all calls have ended.
template <class E>
concept Executor = requires(E& executor, const E& constant, Index n_tasks, void (*f)(Index)) {
  { constant.concurrency() } -> std::convertible_to<Index>;
  executor.run(n_tasks, f);
};

/// Runs every task on the calling thread, in order.
class SerialExecutor {
 public:
  static constexpr Index concurrency() noexcept { return 1; }

  /// Throws: whatever `f` throws, at once; later tasks are then not run.
  template <class F>
  void run(Index n_tasks, F&& f) const {
    for (Index i = 0; i < n_tasks; ++i) f(i);
  }
};

namespace detail {

/// Tells the core that this is a spin loop, so that a sibling hardware thread gets the execution units.
inline void spin_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace detail

/// A fixed set of threads that share the tasks of one `run()` at a time; tasks are claimed one by one, in order.
///
/// Cost: `run()` starts no thread and allocates nothing. Idle threads spin for `spin_time` and then sleep, so work that
/// follows at once starts in well under a microsecond, and an idle pool uses no processor. A thread that the machine
/// has not scheduled delays nobody: only tasks already claimed are waited for.
/// Threads: one `run()` at a time; a second one, also from inside a task, throws `std::logic_error`.
class ThreadPool {
 public:
  /// How long an idle thread looks for work before it sleeps.
  static constexpr std::chrono::microseconds spin_time{60};

  /// Throws: `std::invalid_argument` unless 1 <= n_threads <= 1024; `std::system_error` if a thread cannot be started.
  explicit ThreadPool(Index n_threads) : shared_(std::make_unique<Shared>()) {
    if (n_threads < 1 || n_threads > 1024)
      throw std::invalid_argument(detail::message("a thread pool needs 1 to 1024 threads, not ", n_threads));
    workers_.reserve(static_cast<std::size_t>(n_threads - 1));
    try {
      for (Index i = 1; i < n_threads; ++i) workers_.emplace_back([shared = shared_.get()] { work(*shared); });
    } catch (...) {
      join();
      throw;
    }
  }

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool() { join(); }

  Index concurrency() const noexcept { return static_cast<Index>(workers_.size()) + 1; }

  /// Calls `f(i)` once for each i in [0, n_tasks); returns when all have ended; n_tasks <= 0 does nothing.
  ///
  /// Throws: the first exception a task threw (tasks that nobody had begun by then are skipped);
  /// `std::logic_error` if a `run()` of this pool is under way; `std::length_error` for more than 2^31 - 1 tasks.
  template <class F>
  void run(Index n_tasks, F&& f) {
    if (n_tasks <= 0) return;
    if (n_tasks > std::numeric_limits<std::int32_t>::max())
      throw std::length_error(detail::message("a thread pool runs at most 2147483647 tasks at once, not ", n_tasks));
    const Claim claim(*shared_);
    if (workers_.empty() || n_tasks == 1) {
      for (Index i = 0; i < n_tasks; ++i) f(i);
      return;
    }
    using Function = std::remove_reference_t<F>;
    Shared& s = *shared_;
    s.call = [](void* context, Index i) { (*static_cast<Function*>(context))(i); };
    s.context = const_cast<void*>(static_cast<const void*>(std::addressof(f)));
    s.n_tasks = static_cast<std::int32_t>(n_tasks);
    s.failed.store(false, std::memory_order_relaxed);
    s.unfinished.store(s.n_tasks, std::memory_order_relaxed);
    s.unclaimed.store(s.n_tasks, std::memory_order_release);
    s.unclaimed.notify_all();
    while (run_one(s)) {
    }
    for (std::int32_t left = s.unfinished.load(std::memory_order_acquire); left != 0;
         left = s.unfinished.load(std::memory_order_acquire)) {
      if (!spin_until([&] { return s.unfinished.load(std::memory_order_acquire) != left; })) s.unfinished.wait(left);
    }
    if (s.failed.load(std::memory_order_relaxed)) std::rethrow_exception(std::exchange(s.error, nullptr));
  }

 private:
  /// `unclaimed` alone says whether there is work: whoever lowers it from r > 0 owns task n_tasks - r of the live run,
  /// and that run cannot end before the task does. So a thread that slept through any number of runs needs no check
  /// of generations, and the plain members are read only while they cannot change.
  struct Shared {
    alignas(64) std::atomic<std::int32_t> unclaimed{0};  // tasks nobody has begun; negative: the pool is closing
    alignas(64) std::atomic<std::int32_t> unfinished{0};
    alignas(64) void (*call)(void*, Index) = nullptr;
    void* context = nullptr;
    std::int32_t n_tasks = 0;
    std::atomic<bool> failed{false};
    std::atomic<bool> running{false};
    std::exception_ptr error;
  };

  /// Marks the pool as running for one scope.
  class Claim {
   public:
    explicit Claim(Shared& shared) : shared_(shared) {
      if (shared_.running.exchange(true, std::memory_order_acquire))
        throw std::logic_error("a thread pool's run() was called while it is running (from a task or another thread)");
    }
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    ~Claim() { shared_.running.store(false, std::memory_order_release); }

   private:
    Shared& shared_;
  };

  template <class Ready>
  static bool spin_until(Ready ready) noexcept {
    const auto end = std::chrono::steady_clock::now() + spin_time;
    do {
      for (int i = 0; i < 32; ++i) {
        if (ready()) return true;
        detail::spin_pause();
      }
    } while (std::chrono::steady_clock::now() < end);
    return false;
  }

  /// Runs one task if there is one.
  static bool run_one(Shared& s) noexcept {
    std::int32_t left = s.unclaimed.load(std::memory_order_acquire);
    do {
      if (left <= 0) return false;
    } while (!s.unclaimed.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel, std::memory_order_acquire));
    if (!s.failed.load(std::memory_order_relaxed)) {
      try {
        s.call(s.context, static_cast<Index>(s.n_tasks - left));
      } catch (...) {
        // The caller reads `error` after this task's step of `unfinished`, so the write is seen.
        if (!s.failed.exchange(true, std::memory_order_relaxed)) s.error = std::current_exception();
      }
    }
    if (s.unfinished.fetch_sub(1, std::memory_order_acq_rel) == 1) s.unfinished.notify_one();
    return true;
  }

  static void work(Shared& s) noexcept {
    for (;;) {
      while (run_one(s)) {
      }
      const std::int32_t seen = s.unclaimed.load(std::memory_order_acquire);
      if (seen < 0) return;
      if (seen == 0 && !spin_until([&] { return s.unclaimed.load(std::memory_order_acquire) != 0; }))
        s.unclaimed.wait(0, std::memory_order_acquire);
    }
  }

  void join() noexcept {
    shared_->unclaimed.store(-1, std::memory_order_release);
    shared_->unclaimed.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
  }

  std::unique_ptr<Shared> shared_;  // threads hold its address
  std::vector<std::thread> workers_;
};

static_assert(Executor<SerialExecutor> && Executor<ThreadPool>);

}  // namespace tinyllm
