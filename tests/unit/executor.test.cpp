// SPDX-License-Identifier: Apache-2.0
#include <tinyllm/core/executor.hpp>

#include <atomic>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

using tinyllm::Index;
using tinyllm::SerialExecutor;
using tinyllm::ThreadPool;

namespace {

template <class Executor>
void check_every_index_once(Executor& executor, Index n_tasks) {
  std::vector<std::atomic<int>> calls(static_cast<std::size_t>(n_tasks));
  executor.run(n_tasks, [&](Index i) { calls[static_cast<std::size_t>(i)].fetch_add(1); });
  for (const std::atomic<int>& count : calls) CHECK(count.load() == 1);
}

}  // namespace

TEST_CASE("executor_runs_every_index_once") {
  SerialExecutor serial;
  check_every_index_once(serial, 17);
  for (const Index n_threads : {1, 2, 8}) {
    CAPTURE(n_threads);
    ThreadPool pool(n_threads);
    CHECK(pool.concurrency() == n_threads);
    for (const Index n_tasks : {0, 1, 2, 7, 64, 1000}) check_every_index_once(pool, n_tasks);
    pool.run(-3, [](Index) { FAIL("no task was asked for"); });
  }
}

TEST_CASE("executor_results_are_visible_after_run") {
  for (const Index n_threads : {1, 2, 8}) {
    ThreadPool pool(n_threads);
    std::vector<Index> values(8);
    Index total = 0;
    for (Index round = 0; round < 2000; ++round) {
      pool.run(8, [&](Index i) { values[static_cast<std::size_t>(i)] = round + i; });  // plain writes: TSan watches
      total += std::accumulate(values.begin(), values.end(), Index{0});
    }
    CHECK(total == 8 * (2000 * 1999 / 2) + 2000 * 28);
  }
}

TEST_CASE("executor_wakes_threads_that_sleep") {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // far beyond spin_time
    check_every_index_once(pool, 4);
  }
  // Both tasks wait for each other, so this ends only if two threads really take part.
  std::atomic<int> arrived{0};
  pool.run(2, [&](Index) {
    arrived.fetch_add(1);
    while (arrived.load() < 2) std::this_thread::yield();
  });
  CHECK(arrived.load() == 2);
}

TEST_CASE("executor_propagates_the_first_exception") {
  for (const Index n_threads : {1, 2, 8}) {
    CAPTURE(n_threads);
    ThreadPool pool(n_threads);
    for (int round = 0; round < 50; ++round) {
      const auto fail_at_five = [](Index i) {
        if (i == 5) throw std::runtime_error("task five");
      };
      CHECK_THROWS_WITH_AS(pool.run(20, fail_at_five), "task five", std::runtime_error);
      const auto fail_always = [](Index i) { throw static_cast<int>(i); };
      CHECK_THROWS_AS(pool.run(20, fail_always), int);
    }
    check_every_index_once(pool, 20);  // and it works on
  }
}

TEST_CASE("executor_refuses_a_nested_run") {
  for (const Index n_threads : {1, 2}) {
    ThreadPool pool(n_threads);
    const auto nested = [&](Index) { pool.run(3, [](Index) {}); };
    CHECK_THROWS_AS(pool.run(4, nested), std::logic_error);
    CHECK_THROWS_AS(pool.run(1, nested), std::logic_error);
    check_every_index_once(pool, 3);
  }
}

TEST_CASE("executor_closes_while_idle") {
  for (const Index n_threads : {1, 2, 8}) {
    { const ThreadPool never_used(n_threads); }
    {
      ThreadPool pool(n_threads);
      pool.run(3, [](Index) {});
    }
    {
      ThreadPool pool(n_threads);
      pool.run(3, [](Index) {});
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // its threads sleep by now
    }
  }
}

TEST_CASE("executor_refuses_impossible_sizes") {
  CHECK_THROWS_AS(ThreadPool(0), std::invalid_argument);
  CHECK_THROWS_AS(ThreadPool(-1), std::invalid_argument);
  CHECK_THROWS_AS(ThreadPool(1025), std::invalid_argument);
  ThreadPool pool(2);
  CHECK_THROWS_AS(pool.run(Index{1} << 31, [](Index) {}), std::length_error);
}

TEST_CASE("executor_takes_a_const_callable") {
  ThreadPool pool(2);
  std::atomic<Index> sum{0};
  const auto add = [&](Index i) { sum += i; };
  pool.run(10, add);
  CHECK(sum == 45);
}
