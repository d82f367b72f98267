// SPDX-License-Identifier: Apache-2.0
// Inbox: things that any thread hands over and one thread takes out, in the order in which they came.
//
//     inbox.push(std::move(request));                         // any thread
//     while (inbox.wait(stop)) inbox.take(requests);          // one thread
#pragma once

#include <tinyllm/core/types.hpp>

#include <condition_variable>
#include <iterator>
#include <mutex>
#include <stop_token>
#include <utility>
#include <vector>

namespace tinyllm {

/// Threads: any number at the same time
template <class T>
class Inbox {
 public:
  void push(T thing) {
    {
      const std::scoped_lock lock(mutex_);
      things_.push_back(std::move(thing));
    }
    arrived_.notify_one();
  }

  /// Appends all that has come to `to`.
  void take(std::vector<T>& to) {
    const std::scoped_lock lock(mutex_);
    to.insert(to.end(), std::make_move_iterator(things_.begin()), std::make_move_iterator(things_.end()));
    things_.clear();
  }

  Index size() const {
    const std::scoped_lock lock(mutex_);
    return static_cast<Index>(things_.size());
  }

  /// Waits until something has come; false if `stop` was requested first.
  bool wait(std::stop_token stop) {
    std::unique_lock lock(mutex_);
    return arrived_.wait(lock, std::move(stop), [this] { return !things_.empty(); });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable_any arrived_;
  std::vector<T> things_;
};

}  // namespace tinyllm
