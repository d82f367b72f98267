// SPDX-License-Identifier: Apache-2.0
#include <tinyllm/text/stop_matcher.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

using tinyllm::StopMatcher;

namespace {

struct Found {
  std::size_t end;
  std::string stop;
};

// The rule, spelled out: the earliest completion, of several the longest.
std::optional<Found> first_stop(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::optional<Found> found;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop) && (!found || stop.size() > found->stop.size())) {
        found = Found{end, stop};
      }
    }
    if (found) return found;
  }
  return std::nullopt;
}

std::size_t longest_partial(const std::string& text, const std::vector<std::string>& stops) {
  std::size_t longest = 0;
  for (const std::string& stop : stops) {
    for (std::size_t n = 1; n < stop.size(); ++n) {
      if (text.ends_with(std::string_view(stop).substr(0, n))) longest = std::max(longest, n);
    }
  }
  return longest;
}

}  // namespace

TEST_CASE("stop matcher: against the rule spelled out, over random stops, texts and cuts") {
  for (unsigned seed = 0; seed < 3000; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const std::string alphabet = "abc";
    const auto word = [&](std::size_t most) {
      std::string s;
      for (std::size_t n = 1 + random() % most; n > 0; --n) s += alphabet[random() % alphabet.size()];
      return s;
    };
    std::vector<std::string> stops;
    for (std::size_t n = 1 + random() % 4; n > 0; --n) stops.push_back(word(5));
    const std::string text = word(40);

    StopMatcher matcher(stops);
    const auto expected = first_stop(text, stops);
    std::string released;
    std::size_t at = 0;
    bool matched = false;
    while (at < text.size() && !matched) {
      const std::size_t n = std::min(text.size() - at, 1 + random() % 4);
      matched = matcher.push(std::string_view(text).substr(at, n), released);
      at += n;
      if (!matched) {
        const std::string so_far = text.substr(0, at);
        const std::size_t held = longest_partial(so_far, stops);
        REQUIRE(released == so_far.substr(0, at - held));
        REQUIRE(matcher.held() == so_far.substr(at - held));
      }
    }
    REQUIRE(matched == expected.has_value());
    if (matched) {
      CHECK(released == text.substr(0, expected->end - expected->stop.size()));
      CHECK(matcher.matched() == expected->stop);
      CHECK(matcher.held().empty());
    } else {
      matcher.flush(released);
      CHECK(released == text);
      CHECK(matcher.held().empty());
    }
  }
}

TEST_CASE("stop matcher: without stops everything passes at once") {
  StopMatcher matcher;
  std::string released;
  CHECK_FALSE(matcher.push("any text", released));
  CHECK(released == "any text");
  CHECK(matcher.matched() == std::nullopt);
}

TEST_CASE("stop matcher: empty and ill-formed stops are refused") {
  CHECK_THROWS_AS(StopMatcher({""}), std::invalid_argument);
  CHECK_THROWS_AS(StopMatcher({"a", ""}), std::invalid_argument);
  CHECK_THROWS_AS(StopMatcher({"\xC3"}), std::invalid_argument);
  CHECK_THROWS_AS(StopMatcher({"\x80"}), std::invalid_argument);
  CHECK_NOTHROW(StopMatcher({"\xEF\xBF\xBD", std::string(1, '\0')}));
}

TEST_CASE("stop matcher: a copy has its own place in the text, and reset begins again") {
  StopMatcher first({"abc"});
  std::string released;
  first.push("xab", released);
  StopMatcher second = first;
  std::string other;
  CHECK(second.push("c", other));
  CHECK_FALSE(first.push("d", released));
  CHECK(released == "xabd");
  second.reset();
  CHECK(second.matched() == std::nullopt);
  CHECK_FALSE(second.push("c", other));
  CHECK(other == "c");
}

TEST_CASE("stop matcher: a long stop string that nearly matches costs no more a byte than a short one") {
  // Each byte is released only when the one `length` later has come: what is held is never moved as a whole.
  const std::size_t length = 200'000;
  StopMatcher matcher({std::string(length, 'a') + "b"});
  std::string released;
  for (std::size_t i = 0; i < 3 * length; ++i) matcher.push("a", released);
  CHECK(released.size() == 2 * length);
  CHECK(matcher.held().size() == length);
  CHECK(matcher.push("b", released));
  CHECK(released.size() == 2 * length);
}

TEST_CASE("stop matcher: a text behind the stop is a caller's bug") {
  StopMatcher matcher({"a"});
  std::string released;
  CHECK(matcher.push("a", released));
  CHECK_THROWS(matcher.push("b", released));
}
