// SPDX-License-Identifier: Apache-2.0
// StopMatcher: lets text through until a stop string appears, holding back exactly what may still become one.
//
//     StopMatcher matcher({"\n\n", "User:"});
//     std::string released;
//     if (matcher.push("Hello\nUs", released)) ...     // released "Hello\n"; "Us" is held
//     if (matcher.push("er: hi", released)) ...        // true: matcher.matched() is "User:", nothing more is released
//     matcher.flush(released);                         // at the end: what is held and became no stop
//
// The first stop is the one that completes earliest; of those that complete at one character, the longest. So the result
// does not depend on how the text is cut into pieces. What is held is the longest tail that is a proper prefix of a stop.
// Source: Aho and Corasick, "Efficient string matching: an aid to bibliographic search", 1975.
#pragma once

#include <tinyllm/core/error.hpp>
#include <tinyllm/core/types.hpp>
#include <tinyllm/text/utf8.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tinyllm {

/// Copies are cheap: they share the automaton and have their own place in the text.
/// Threads: one matcher, one thread; copies are independent
class StopMatcher {
 public:
  /// Lets everything through.
  StopMatcher() = default;

  /// Throws: std::invalid_argument for a stop that is empty or not well-formed UTF-8.
  /// Cost: O(bytes of all stops · distinct bytes in them)
  explicit StopMatcher(std::vector<std::string> stops) {
    if (!stops.empty()) automaton_ = std::make_shared<const Automaton>(std::move(stops));
  }

  /// Appends to `released` what became final, and tells whether a stop string is complete; then the text ends before it.
  /// Pre: `text` is well-formed UTF-8; no stop has matched since the last reset
  /// Cost: O(bytes), whatever the number of stops
  bool push(std::string_view text, std::string& released) {
    if (automaton_ == nullptr) {
      released += text;
      return false;
    }
    TINYLLM_ASSERT(!matched_.has_value());
    const Automaton& automaton = *automaton_;
    std::uint32_t node = node_;
    for (std::size_t i = 0; i < text.size(); ++i) {
      node = automaton.next(node, text[i]);
      if (const std::uint32_t stop = automaton.longest_stop(node); stop != no_stop) {
        release(text.substr(0, i + 1), automaton.stop(stop).size(), released);
        drop_held();
        matched_ = stop;
        return true;
      }
    }
    node_ = node;
    release(text, automaton.depth(node), released);
    return false;
  }

  /// Appends what is held, which no stop will complete any more, and starts afresh.
  void flush(std::string& released) {
    released += held();
    reset();
  }

  /// Forgets what is held and what matched.
  void reset() {
    drop_held();
    matched_.reset();
  }

  /// The stop string that matched.
  std::optional<std::string_view> matched() const {
    if (!matched_.has_value()) return std::nullopt;
    return automaton_->stop(*matched_);
  }

  /// Text that waits to become a stop string or not.
  std::string_view held() const { return std::string_view(buffer_).substr(begin_); }

 private:
  static constexpr std::uint32_t root = 0;
  static constexpr std::uint32_t no_stop = UINT32_MAX;

  // The complete goto table over the classes of bytes that occur in the stops, so that a step is two loads.
  class Automaton {
   public:
    explicit Automaton(std::vector<std::string> stops) : stops_(std::move(stops)) {
      for (const std::string& stop : stops_) {
        check(stop);
        for (const char c : stop) {
          std::uint16_t& byte_class = classes_[static_cast<unsigned char>(c)];
          if (byte_class == 0) byte_class = ++n_classes_;
        }
      }
      ++n_classes_;  // class 0: bytes in no stop
      build_trie();
      add_failures();
    }

    std::uint32_t next(std::uint32_t node, char c) const {
      return goto_[std::size_t{node} * n_classes_ + classes_[static_cast<unsigned char>(c)]];
    }
    std::uint32_t longest_stop(std::uint32_t node) const { return nodes_[node].stop; }
    std::size_t depth(std::uint32_t node) const { return nodes_[node].depth; }
    std::string_view stop(std::uint32_t i) const { return stops_[i]; }

   private:
    struct Node {
      std::uint32_t depth;  // bytes from the root: the tail that is held
      std::uint32_t stop;   // the longest stop that ends here
    };

    static void check(const std::string& stop) {
      if (stop.empty()) throw std::invalid_argument("a stop string must not be empty");
      std::string replaced;
      Utf8Stream utf8;
      utf8.push(stop, replaced);
      utf8.finish(replaced);
      if (replaced != stop) throw std::invalid_argument("a stop string must be well-formed UTF-8");
    }

    std::uint32_t add_node(std::uint32_t depth) {
      nodes_.push_back({depth, no_stop});
      goto_.resize(goto_.size() + n_classes_, root);
      return static_cast<std::uint32_t>(nodes_.size() - 1);
    }

    std::uint32_t& edge(std::uint32_t node, std::size_t byte_class) {
      return goto_[std::size_t{node} * n_classes_ + byte_class];
    }

    void build_trie() {
      add_node(0);
      for (std::uint32_t i = 0; i < stops_.size(); ++i) {
        std::uint32_t node = root;
        for (const char c : stops_[i]) {
          const std::uint16_t byte_class = classes_[static_cast<unsigned char>(c)];
          if (edge(node, byte_class) == root) {
            const std::uint32_t child = add_node(nodes_[node].depth + 1);
            edge(node, byte_class) = child;
          }
          node = edge(node, byte_class);
        }
        nodes_[node].stop = i;
      }
    }

    // Breadth first: a node's failure is finished before the node is, so missing edges can be copied from it.
    void add_failures() {
      std::vector<std::uint32_t> failure(nodes_.size(), root);
      std::vector<std::uint32_t> order;
      for (std::size_t c = 0; c < n_classes_; ++c) {
        if (edge(root, c) != root) order.push_back(edge(root, c));
      }
      for (std::size_t at = 0; at < order.size(); ++at) {
        const std::uint32_t node = order[at];
        const std::uint32_t behind = failure[node];
        if (nodes_[node].stop == no_stop) nodes_[node].stop = nodes_[behind].stop;
        for (std::size_t c = 0; c < n_classes_; ++c) {
          std::uint32_t& child = edge(node, c);
          if (child == root) {
            child = edge(behind, c);
          } else {
            failure[child] = edge(behind, c);
            order.push_back(child);
          }
        }
      }
    }

    std::vector<std::string> stops_;
    std::array<std::uint16_t, 256> classes_{};
    std::uint16_t n_classes_ = 0;
    std::vector<Node> nodes_;
    std::vector<std::uint32_t> goto_;
  };

  // Releases what is held and the text behind it but for the last `keep` bytes, which are held from now on.
  void release(std::string_view text, std::size_t keep, std::string& released) {
    if (keep <= text.size()) {
      released += held();
      released += text.substr(0, text.size() - keep);
      buffer_.assign(text.substr(text.size() - keep));
      begin_ = 0;
    } else {
      const std::size_t out = held().size() + text.size() - keep;
      released += held().substr(0, out);
      begin_ += out;
      if (begin_ > buffer_.size() / 2) {  // now and then, so that a byte is moved a constant number of times
        buffer_.erase(0, begin_);
        begin_ = 0;
      }
      buffer_ += text;
    }
  }

  void drop_held() {
    buffer_.clear();
    begin_ = 0;
    node_ = root;
  }

  std::shared_ptr<const Automaton> automaton_;
  std::string buffer_;     // ends in what is held
  std::size_t begin_ = 0;  // where that begins
  std::uint32_t node_ = root;
  std::optional<std::uint32_t> matched_;
};

}  // namespace tinyllm
