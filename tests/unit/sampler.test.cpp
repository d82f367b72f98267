// SPDX-License-Identifier: Apache-2.0
#include <tinyllm/sampling/sampler.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <limits>
#include <random>

using namespace tinyllm;
using nlohmann::json;

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

std::vector<TokenId> kept(const std::vector<float>& logits, const SamplingParams& params) {
  Sampler sampler(params);
  std::vector<TokenId> ids;
  for (const Candidate& c : sampler.candidates(logits, {}, {})) ids.push_back(c.id);
  return ids;
}

std::vector<float> floats(const json& values) {
  std::vector<float> out;
  for (const json& value : values) out.push_back(value.is_number() ? value.get<float>() : not_a_number);
  return out;
}

}  // namespace

TEST_CASE("sampler vectors") {
  const json data = json::parse(std::ifstream(TEST_DATA_DIR "/streaming.json"));
  CHECK(data.at("sampler").size() == 11);
  for (const json& vector : data.at("sampler")) {
    CAPTURE(vector.at("name").get<std::string>());
    std::vector<float> logits;
    if (vector.contains("p")) {
      for (const float p : floats(vector.at("p"))) logits.push_back(std::log(p));
    } else {
      logits = floats(vector.at("logits"));
    }
    if (vector.contains("argmax")) {
      CHECK(greedy_choice(logits) == vector.at("argmax").get<TokenId>());
      continue;
    }
    SamplingParams params{.repetition_penalty = vector.value("r", 1.0F),
                          .presence_penalty = vector.value("pres", 0.0F),
                          .frequency_penalty = vector.value("freq", 0.0F),
                          .temperature = vector.value("T", 1.0F),
                          .min_p = vector.value("min_p", 0.0F),
                          .top_k = vector.value("top_k", Index{0}),
                          .top_p = vector.value("top_p", 1.0F)};
    if (vector.contains("out")) {
      Sampler sampler(params);
      const auto seen = vector.value("seen", std::vector<TokenId>());
      const auto prompt = vector.value("prompt", seen);
      const auto output = vector.value("output", std::vector<TokenId>());
      const auto scores = sampler.adjusted(logits, output, prompt);
      const std::vector<float> expected = floats(vector.at("out"));
      for (std::size_t i = 0; i < expected.size(); ++i) CHECK(scores[i] == doctest::Approx(expected[i]));
    } else {
      CHECK(kept(logits, params) == vector.at(vector.contains("keep") ? "keep" : "keep_exact").get<std::vector<TokenId>>());
    }
  }
}

TEST_CASE("sampler: greedy takes the highest logit, the lowest id on a tie, and never NaN") {
  CHECK(greedy_choice(std::vector<float>{1, 3, 3}) == 1);
  CHECK(greedy_choice(std::vector<float>{not_a_number, -5, not_a_number}) == 1);
  CHECK(greedy_choice(std::vector<float>{0, infinity, infinity}) == 1);
  CHECK_THROWS_AS(greedy_choice({}), std::invalid_argument);
  CHECK_THROWS_AS(greedy_choice(std::vector<float>{not_a_number, -infinity}), std::invalid_argument);
}

TEST_CASE("sampler: log-probabilities are those of the raw logits") {
  const std::vector<float> logits = {1.0F, 2.0F, 3.0F, -infinity, not_a_number};
  const double sum = std::exp(1.0) + std::exp(2.0) + std::exp(3.0);
  CHECK(log_probability(logits, 2) == doctest::Approx(3.0 - std::log(sum)));
  CHECK(log_probability(logits, 3) == -infinity);
  CHECK(log_probability(logits, 4) == -infinity);
  const std::vector<float> low(7, -1e5F);  // all the same, however low, is still a softmax
  CHECK(log_probability(low, 3) == doctest::Approx(-std::log(7.0)));
  CHECK(log_probability(std::vector<float>{0, infinity}, 1) == 0.0F);
  CHECK(log_probability(std::vector<float>{0, infinity}, 0) == -infinity);

  Rng rng = request_rng();
  const SamplingParams params{.logit_bias = {{0, 100.0F}}, .temperature = 2.0F, .top_k = 1};
  const Sampled next = sample(logits, params, {}, rng);
  CHECK(next.id == 0);
  CHECK(next.logprob == doctest::Approx(1.0 - std::log(sum)));
}

TEST_CASE("sampler: the parameters apply in the stated order") {
  // Penalties before temperature: 4/2 = 2 falls below 2.1, whatever the temperature.
  CHECK(kept({4.0F, 2.1F}, {.logit_bias = {{0, -2.0F}}, .temperature = 1.0F, .top_k = 1}) == std::vector<TokenId>{1});
  // min_p before top_k before top_p: of the three that min_p keeps, top_k takes two, and top_p counts only those.
  const std::vector<float> logits = {std::log(0.5F), std::log(0.3F), std::log(0.15F), std::log(0.05F)};
  CHECK(kept(logits, {.temperature = 1.0F, .min_p = 0.2F}) == std::vector<TokenId>{0, 1, 2});
  CHECK(kept(logits, {.temperature = 1.0F, .min_p = 0.2F, .top_k = 2}) == std::vector<TokenId>{0, 1});
  CHECK(kept(logits, {.temperature = 1.0F, .top_k = 2, .top_p = 0.6F}) == std::vector<TokenId>{0});  // 0.5/0.8 > 0.6
  CHECK(kept(logits, {.temperature = 1.0F, .top_p = 0.6F}) == std::vector<TokenId>{0, 1});
  // The candidates' probabilities sum to one.
  Sampler sampler({.temperature = 0.7F, .top_k = 3});
  double sum = 0;
  for (const Candidate& c : sampler.candidates(logits, {}, {})) sum += c.probability;
  CHECK(sum == doctest::Approx(1.0));
}

TEST_CASE("sampler: the repetition penalty takes each id of prompt and answer once, presence and frequency the answer's") {
  const std::vector<TokenId> prompt = {0, 0, 2};
  const std::vector<TokenId> history = {1, 1, 2};
  Sampler repetition({.repetition_penalty = 2.0F});
  const auto scores = repetition.adjusted(std::vector<float>{4, -3, 0, 5}, history, prompt);
  CHECK(std::vector<float>(scores.begin(), scores.end()) == std::vector<float>{2, -6, 0, 5});
  Sampler counted({.presence_penalty = 0.5F, .frequency_penalty = 0.25F});
  const auto lowered = counted.adjusted(std::vector<float>{4, 4, 4, 4}, history, prompt);
  CHECK(std::vector<float>(lowered.begin(), lowered.end()) == std::vector<float>{4, 3, 3.25F, 4});
  // Each of the two alone.
  Sampler presence({.presence_penalty = 0.5F});
  const auto present = presence.adjusted(std::vector<float>{4, 4, 4, 4}, history, prompt);
  CHECK(std::vector<float>(present.begin(), present.end()) == std::vector<float>{4, 3.5F, 3.5F, 4});
  Sampler frequency({.frequency_penalty = 0.25F});
  const auto frequent = frequency.adjusted(std::vector<float>{4, 4, 4, 4}, history, prompt);
  CHECK(std::vector<float>(frequent.begin(), frequent.end()) == std::vector<float>{4, 3.5F, 3.75F, 4});
  // Ids that the vocabulary does not have are no reason to fail: a prompt may come from anywhere.
  const std::vector<TokenId> strange = {-1, 99, 0};
  CHECK(repetition.adjusted(std::vector<float>{4, 4}, strange, strange)[0] == 2);
}

TEST_CASE("sampler: top_k of one is greedy, also on ties") {
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    std::vector<float> logits(20);
    for (float& x : logits) x = static_cast<float>(random() % 5);
    CHECK(kept(logits, {.temperature = 1.0F, .top_k = 1}) == std::vector<TokenId>{greedy_choice(logits)});
    CHECK(kept(logits, {}) == std::vector<TokenId>{greedy_choice(logits)});
  }
}

TEST_CASE("sampler: a top_p near one or near zero leaves something to choose") {
  std::vector<float> logits(1000, 0.0F);
  CHECK(kept(logits, {.temperature = 1.0F, .top_p = 0.99999994F}).size() == 1000);
  CHECK(kept(logits, {.temperature = 1.0F, .top_p = 1e-12F}).size() == 1);
  logits[7] = 100.0F;
  CHECK(kept(logits, {.temperature = 1.0F, .top_p = 0.99999994F}) == std::vector<TokenId>{7});
  CHECK(kept(logits, {.temperature = 1e-6F}) == std::vector<TokenId>{7});
}

TEST_CASE("sampler: infinite and NaN logits") {
  CHECK(kept({not_a_number, 1, -infinity, 1}, {.temperature = 1.0F}) == std::vector<TokenId>{1, 3});
  CHECK(kept({5, infinity, infinity}, {.temperature = 1.0F}) == std::vector<TokenId>{1, 2});
  Rng rng = request_rng();
  CHECK_THROWS_AS(sample(std::vector<float>{not_a_number, -infinity}, {.temperature = 1.0F}, {}, rng), std::invalid_argument);
  CHECK_THROWS_AS(sample(std::vector<float>{not_a_number, not_a_number}, {}, {}, rng), std::invalid_argument);
}

TEST_CASE("sampler: what makes no sense is refused by name") {
  const auto refused = [](const SamplingParams& params, const char* name) {
    CHECK_THROWS_WITH_AS(check_params(params), doctest::Contains(name), std::invalid_argument);
  };
  refused({.max_tokens = -1}, "max_tokens");
  refused({.repetition_penalty = 0.0F}, "repetition_penalty");
  refused({.repetition_penalty = not_a_number}, "repetition_penalty");
  refused({.presence_penalty = infinity}, "presence_penalty");
  refused({.frequency_penalty = not_a_number}, "frequency_penalty");
  refused({.temperature = -0.5F}, "temperature");
  refused({.temperature = not_a_number}, "temperature");
  refused({.temperature = infinity}, "temperature");
  refused({.min_p = 1.5F}, "min_p");
  refused({.top_k = -1}, "top_k");
  refused({.top_p = 0.0F}, "top_p");
  refused({.top_p = 1.1F}, "top_p");
  refused({.min_tokens = -1}, "min_tokens");
  CHECK_NOTHROW(check_params({}));
  Rng rng = request_rng();
  CHECK_THROWS_WITH_AS(sample(std::vector<float>{1, 2}, {.logit_bias = {{2, 1.0F}}}, {}, rng), doctest::Contains("logit_bias"),
                       std::invalid_argument);
  CHECK_THROWS_AS(sample(std::vector<float>{1, 2}, {.logit_bias = {{-1, 1.0F}}}, {}, rng), std::invalid_argument);
}

TEST_CASE("sampler: draws follow the probabilities") {
  const std::vector<float> logits = {std::log(0.6F), std::log(0.3F), std::log(0.1F)};
  const SamplingParams params{.temperature = 1.0F};
  Rng rng = request_rng(5);
  std::vector<int> counts(3, 0);
  const int n = 30'000;
  for (int i = 0; i < n; ++i) ++counts[static_cast<std::size_t>(sample(logits, params, {}, rng).id)];
  // Four standard deviations of a binomial count.
  CHECK(std::abs(counts[0] - 0.6 * n) < 4 * std::sqrt(n * 0.6 * 0.4));
  CHECK(std::abs(counts[1] - 0.3 * n) < 4 * std::sqrt(n * 0.3 * 0.7));
  CHECK(std::abs(counts[2] - 0.1 * n) < 4 * std::sqrt(n * 0.1 * 0.9));
}

TEST_CASE("sampler: entropy is that of the distribution drawn from") {
  const std::vector<float> logits(8, 1.0F);
  CHECK(sampled_entropy(logits, {.temperature = 1.0F}) == doctest::Approx(std::log(8.0)));
  CHECK(sampled_entropy(logits, {.temperature = 1.0F, .top_k = 2}) == doctest::Approx(std::log(2.0)));
  CHECK(sampled_entropy(logits, {}) == 0.0);
  // A probability that rounds to nothing adds nothing.
  CHECK(sampled_entropy(std::vector<float>{0, 0, 0, -745}, {.temperature = 1.0F}) == doctest::Approx(std::log(3.0)));
}

TEST_CASE("random: the stream of a seed is fixed") {
  // The C++ standard: the 10000th output of a default-constructed mt19937_64 is 9981545732273789042.
  Rng standard(std::mt19937_64::default_seed);
  standard.discard(9999);
  CHECK(standard() == 9981545732273789042U);
  Rng rng = request_rng(7);
  Rng same = request_rng(7);
  CHECK(uniform(rng) == static_cast<double>(same() >> 11) / 9007199254740992.0);
  for (int i = 0; i < 1000; ++i) {
    const double u = uniform(rng);
    CHECK(u >= 0);
    CHECK(u < 1);
  }
  CHECK(request_rng()() == request_rng(0)());
}

TEST_CASE("sampler: the bias comes before the penalties") {
  Sampler sampler({.logit_bias = {{0, 1.0F}, {1, 5.0F}}, .repetition_penalty = 2.0F});
  const std::vector<TokenId> seen = {0, 1};
  const auto scores = sampler.adjusted(std::vector<float>{1, -1}, seen, {});
  CHECK(scores[0] == 1);  // (1 + 1) / 2
  CHECK(scores[1] == 2);  // (-1 + 5) / 2: positive by then
}

TEST_CASE("sampler: greedy log-probabilities are those of the raw logits too") {
  Rng rng = request_rng();
  const Sampled next = sample(std::vector<float>{1, 2}, {.logit_bias = {{0, 5.0F}}}, {}, rng);
  CHECK(next.id == 0);
  CHECK(next.logprob == doctest::Approx(1.0 - std::log(std::exp(1.0) + std::exp(2.0))));
  CHECK(next.entropy == 0.0);
}

TEST_CASE("sampler: a min_p of one keeps the most probable id and its equals") {
  CHECK(kept({1, 3, 2, 3}, {.temperature = 1.0F, .min_p = 1.0F}) == std::vector<TokenId>{1, 3});
  CHECK(kept({1, 3, 2}, {.temperature = 0.5F, .min_p = 1.0F}) == std::vector<TokenId>{1});
}

TEST_CASE("sampler: the limits of what makes sense make sense") {
  CHECK_NOTHROW(check_params({.max_tokens = 0, .min_p = 1.0F, .top_k = 0, .top_p = 1.0F, .min_tokens = 0}));
  CHECK_NOTHROW(check_params({.max_tokens = 1, .repetition_penalty = 0.5F, .min_p = 0.0F, .top_k = 1, .min_tokens = 1}));
  CHECK_NOTHROW(check_params({.presence_penalty = -1.0F, .frequency_penalty = -1.0F, .temperature = 0.0F, .top_p = 1e-6F}));
  CHECK_THROWS_AS(check_params({.repetition_penalty = std::numeric_limits<float>::infinity()}), std::invalid_argument);
  CHECK_THROWS_AS(check_params({.min_p = -0.1F}), std::invalid_argument);
  CHECK_THROWS_AS(check_params({.top_p = -0.5F}), std::invalid_argument);
  CHECK(Sampled{}.id == 0);
  CHECK(Candidate{}.id == 0);
}
