// SPDX-License-Identifier: Apache-2.0
#include <tinyllm/sampling/sampler.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <random>
#include <vector>

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

std::vector<CpuLevel> levels_here() {
  std::vector<CpuLevel> levels;
  for (const CpuLevel level : cpu_levels) {
    if (runs(level)) levels.push_back(level);
  }
  return levels;
}

// The slow sampler: everything sorted, in long double. Only where top_p ends is left open, by what float weights may err.
struct SlowSampler {
  struct Entry {
    TokenId id;
    float score;
    long double weight;
  };
  std::vector<Entry> order;  // what min_p and top_k leave, the highest first, the lowest id first on a tie
  std::size_t fewest = 0;
  std::size_t most = 0;

  SlowSampler(const std::vector<float>& logits, const SamplingParams& params) {
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (!std::isnan(logits[i]) && logits[i] != -infinity) order.push_back({static_cast<TokenId>(i), logits[i], 1.0L});
    }
    std::stable_sort(order.begin(), order.end(), [](const Entry& a, const Entry& b) { return a.score > b.score; });
    const auto highest = static_cast<long double>(order.front().score);
    const auto temperature = static_cast<long double>(params.temperature);
    long double least = highest - 87 * temperature;
    if (params.min_p > 0) least = std::max(least, highest + temperature * std::log(static_cast<long double>(params.min_p)));
    if (std::isinf(highest)) least = highest;
    std::erase_if(order, [&](const Entry& entry) { return static_cast<long double>(entry.score) < least; });
    if (params.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(params.top_k)));
    for (Entry& entry : order) {
      if (entry.score != order.front().score)
        entry.weight = std::exp((static_cast<long double>(entry.score) - highest) / temperature);
    }
    fewest = most = order.size();
    if (params.top_p < 1) {
      fewest = reaching(static_cast<long double>(params.top_p) - 1e-6L);
      most = reaching(static_cast<long double>(params.top_p) + 1e-6L);
    }
  }

  std::size_t reaching(long double share) const {
    const long double target = share * sum(order.size());
    long double reached = 0;
    std::size_t n = 0;
    while (n < order.size() && (n == 0 || reached < target)) reached += order[n++].weight;
    return n;
  }

  long double sum(std::size_t n) const {
    long double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += order[i].weight;
    return sum;
  }

  double entropy(std::size_t n) const {
    const long double total = sum(n);
    long double entropy = 0;
    for (std::size_t i = 0; i < n; ++i) entropy -= order[i].weight / total * std::log(order[i].weight / total);
    return static_cast<double>(entropy);
  }
};

double slow_log_probability(const std::vector<float>& logits, TokenId id) {
  long double highest = -infinity;
  for (const float x : logits) highest = std::isnan(x) ? highest : std::max(highest, static_cast<long double>(x));
  long double sum = 0;
  for (const float x : logits) sum += std::isnan(x) ? 0.0L : std::exp(static_cast<long double>(x) - highest);
  return static_cast<double>(static_cast<long double>(logits[static_cast<std::size_t>(id)]) - highest - std::log(sum));
}

enum class Kind { integers, normal, flat, coarse, ascending, all_sizes, huge, tiny, equal, special };
constexpr int n_kinds = 10;

std::vector<float> random_logits(Kind kind, std::size_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> logits(n);
  for (std::size_t i = 0; i < n; ++i) {
    float& x = logits[i];
    switch (kind) {
      case Kind::integers: x = static_cast<float>(random() % 5); break;
      case Kind::normal: x = 3 * normal(random); break;
      case Kind::flat: x = 0.01F * normal(random); break;
      case Kind::coarse: x = std::round(8 * normal(random)) / 4; break;
      case Kind::ascending: x = 20 * static_cast<float>(i) / static_cast<float>(n); break;
      case Kind::all_sizes: {
        const int exponent = static_cast<int>(random() % 240) - 120;
        x = std::ldexp(normal(random), exponent);
        break;
      }
      case Kind::huge: x = 1e38F * normal(random); break;
      case Kind::tiny: x = 1e-38F * normal(random); break;
      case Kind::equal: x = -2.5F; break;
      case Kind::special: {
        const float values[] = {not_a_number, -infinity, n % 3 == 0 ? infinity : 1.0F, 0.0F, -0.0F, normal(random)};
        x = values[random() % 6];
        break;
      }
    }
  }
  logits[random() % n] = 1.0F;  // so that there is something to choose
  return logits;
}

SamplingParams random_params(std::size_t n, std::mt19937& random) {
  const auto any = [&random](std::initializer_list<float> values) { return values.begin()[random() % values.size()]; };
  const Index k[] = {0, 0, 1, 2, 40, 300, static_cast<Index>(n) - 1, static_cast<Index>(n)};
  return {.temperature = any({0.3F, 1.0F, 1.0F, 2.0F, 1e-6F, 1e30F, 1e-30F}),
          .min_p = any({0.0F, 0.0F, 0.05F, 0.5F, 1.0F, 1e-20F}),
          .top_k = k[random() % 8],
          .top_p = any({1.0F, 1.0F, 0.99999994F, 0.999F, 0.95F, 0.5F, 1e-9F})};
}

// Half of the logits become the lowest one that min_p, or its being a weight at all, leaves.
void put_on_cut(std::vector<float>& logits, const SamplingParams& params, std::mt19937& random) {
  const auto best = static_cast<std::size_t>(greedy_choice(logits));
  const auto highest = static_cast<long double>(logits[best]);
  const auto temperature = static_cast<long double>(params.temperature);
  long double least = highest - 87 * temperature;
  if (params.min_p > 0) least = std::max(least, highest + temperature * std::log(static_cast<long double>(params.min_p)));
  auto cut = static_cast<float>(least);
  if (static_cast<long double>(cut) < least) cut = std::nextafter(cut, infinity);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (i != best && random() % 2 == 0) logits[i] = cut;
  }
}

std::size_t random_size(std::mt19937& random) {
  constexpr std::size_t sizes[] = {1, 2, 3, 15, 16, 17, 255, 256, 257, 511, 777, 1024, 2049, 4999, 20'000};
  return sizes[random() % std::size(sizes)];
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
  std::vector<float> one(1000, not_a_number);  // more behind it than in front
  one[3] = -1e30F;
  CHECK(greedy_choice(one) == 3);
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
  refused({.temperature = 1.1e30F}, "temperature 1.1e+30 is not 0 or in [1e-30, 1e30]");  // weights of NaN from 4e36 on
  refused({.temperature = 0.9e-30F}, "temperature");
  refused({.temperature = -1e-30F}, "temperature");
  refused({.logit_bias = {{0, 1.0F}, {1, not_a_number}}}, "logit_bias nan is not a number");
  CHECK_NOTHROW(check_params({.logit_bias = {{0, infinity}, {1, -infinity}}, .temperature = -0.0F}));
  CHECK_NOTHROW(check_params({.temperature = 1e30F}));
  CHECK_NOTHROW(check_params({.temperature = 1e-30F}));
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

TEST_CASE("sampler: every combination of filters keeps and draws what the slow sampler does") {
  std::mt19937 random(29);
  for (int i = 0; i < 1500; ++i) {
    const std::size_t n = random_size(random);
    const auto kind = static_cast<Kind>(i % n_kinds);
    std::vector<float> logits = random_logits(kind, n, random);
    const SamplingParams params = random_params(n, random);
    if (i % 3 == 0) put_on_cut(logits, params, random);
    CAPTURE(i);
    CAPTURE(n);
    CAPTURE(params.temperature);
    CAPTURE(params.min_p);
    CAPTURE(params.top_k);
    CAPTURE(params.top_p);
    const SlowSampler slow(logits, params);
    Sampler sampler(params);
    const std::span<const Candidate> candidates = sampler.candidates(logits, {}, {});
    REQUIRE(candidates.size() >= slow.fewest);
    REQUIRE(candidates.size() <= slow.most);

    std::vector<SlowSampler::Entry> kept(slow.order.begin(),
                                         slow.order.begin() + static_cast<std::ptrdiff_t>(candidates.size()));
    std::sort(kept.begin(), kept.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
    const long double sum = slow.sum(kept.size());
    std::size_t wrong = 0;
    for (std::size_t j = 0; j < kept.size(); ++j) {
      const auto expected = static_cast<double>(kept[j].weight / sum);
      wrong += candidates[j].id != kept[j].id || std::abs(candidates[j].probability - expected) > 3e-5 * expected;
    }
    REQUIRE(wrong == 0);

    // The draw again: the random number lies in the share of the id, among those kept in the order of ids.
    Rng rng = request_rng(static_cast<std::uint64_t>(i));
    Rng same = rng;
    const Sampled next = sampler.sample(logits, {}, rng, {});
    const double u = uniform(same);
    CHECK(rng == same);
    long double before = 0;
    std::size_t j = 0;
    for (; j < kept.size() && kept[j].id != next.id; ++j) before += kept[j].weight / sum;
    REQUIRE(j < kept.size());
    CHECK(u >= static_cast<double>(before) - 1e-6);
    CHECK(u <= static_cast<double>(before + kept[j].weight / sum) + 1e-6);
    CHECK(next.entropy == doctest::Approx(slow.entropy(kept.size())).epsilon(1e-5));
    CHECK(next.entropy == doctest::Approx(entropy_of(candidates)).epsilon(1e-5));
    if (logits[static_cast<std::size_t>(next.id)] != infinity) {
      CHECK(static_cast<double>(next.logprob) == doctest::Approx(slow_log_probability(logits, next.id)).epsilon(1e-6));
    }
    CHECK(next.logprob == log_probability(logits, next.id));
  }
}

TEST_CASE("sampler: every level gives the same bits") {
  std::mt19937 random(31);
  for (int i = 0; i < 600; ++i) {
    const std::size_t n = random_size(random);
    std::vector<float> logits = random_logits(static_cast<Kind>(i % n_kinds), n, random);
    SamplingParams params = random_params(n, random);
    if (i % 5 == 0) put_on_cut(logits, params, random);
    if (i % 7 == 0) params.temperature = 0;
    const std::vector<TokenId> history = {0, static_cast<TokenId>(n / 2)};
    if (i % 3 == 0) params.repetition_penalty = 1.3F;
    CAPTURE(i);
    CAPTURE(n);
    Sampler oldest(params, CpuLevel::portable);
    const std::span<const Candidate> expected = oldest.candidates(logits, history, {});
    Rng rng = request_rng(static_cast<std::uint64_t>(i));
    const Sampled first = Sampler(params, CpuLevel::portable).sample(logits, history, rng, {});
    for (const CpuLevel level : levels_here()) {
      CAPTURE(name(level));
      Sampler sampler(params, level);
      Rng again = request_rng(static_cast<std::uint64_t>(i));
      const Sampled next = sampler.sample(logits, history, again, {});
      CHECK(next.id == first.id);
      CHECK(std::bit_cast<std::uint32_t>(next.logprob) == std::bit_cast<std::uint32_t>(first.logprob));
      CHECK(std::bit_cast<std::uint64_t>(next.entropy) == std::bit_cast<std::uint64_t>(first.entropy));
      CHECK(greedy_choice(logits, level) == greedy_choice(logits, CpuLevel::portable));
      const std::span<const Candidate> candidates = sampler.candidates(logits, history, {});
      REQUIRE(candidates.size() == expected.size());
      std::size_t different = 0;
      for (std::size_t j = 0; j < expected.size(); ++j) {
        different += candidates[j].id != expected[j].id || std::bit_cast<std::uint64_t>(candidates[j].probability) !=
                                                               std::bit_cast<std::uint64_t>(expected[j].probability);
      }
      CHECK(different == 0);
    }
  }
}

TEST_CASE("sampler: log-probabilities of a large vocabulary are right to a millionth") {
  std::mt19937 random(37);
  for (const float spread : {0.01F, 1.0F, 4.0F, 30.0F}) {
    std::normal_distribution<float> normal(5.0F, spread);
    std::vector<float> logits(131'072);
    for (float& x : logits) x = normal(random);
    for (int i = 0; i < 20; ++i) {
      const auto id = static_cast<TokenId>(random() % logits.size());
      const double expected = slow_log_probability(logits, id);
      for (const CpuLevel level : levels_here()) {
        CHECK(static_cast<double>(log_probability(logits, id, level)) == doctest::Approx(expected).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("sampler: filters go by the score where weights are all alike") {
  std::mt19937 random(41);
  for (const std::size_t n : {std::size_t{20}, std::size_t{3000}}) {
    const std::vector<float> logits = random_logits(Kind::normal, n, random);
    const TokenId best = greedy_choice(logits);
    CHECK(kept(logits, {.temperature = 1e30F, .top_k = 1}) == std::vector<TokenId>{best});
    CHECK(kept(logits, {.temperature = 1e30F, .top_p = 1e-9F}) == std::vector<TokenId>{best});
    CHECK(kept(logits, {.temperature = 1e30F, .min_p = 1.0F}) == std::vector<TokenId>{best});
  }
}

TEST_CASE("sampler: of equal logits without number the lowest ids are kept") {
  const std::vector<float> logits(100'003, 0.25F);
  const auto first_ids = [&](const SamplingParams& params) {
    const std::vector<TokenId> ids = kept(logits, params);
    CHECK(ids.front() == 0);
    CHECK(ids.back() == static_cast<TokenId>(ids.size()) - 1);
    return ids.size();
  };
  CHECK(greedy_choice(logits) == 0);
  CHECK(first_ids({.temperature = 1.0F}) == 100'003);
  CHECK(first_ids({.temperature = 1.0F, .min_p = 1.0F}) == 100'003);
  CHECK(first_ids({.temperature = 1.0F, .top_k = 1}) == 1);
  CHECK(first_ids({.temperature = 1.0F, .top_k = 40}) == 40);
  CHECK(first_ids({.temperature = 1.0F, .top_k = 70'001}) == 70'001);
  CHECK(first_ids({.temperature = 1.0F, .top_p = 0.5F}) == 50'002);  // half of an odd number, and the id that crosses
  CHECK(first_ids({.temperature = 1.0F, .top_k = 1001, .top_p = 0.25F}) == 251);
}

TEST_CASE("sampler: a top_k beyond what min_p leaves keeps all of that, also where most of it lies on the cut") {
  std::vector<float> logits(1000, -200.0F);
  logits[400] = 10.0F;
  std::fill_n(logits.begin(), 400, -77.0F);  // 10 - 87: just a weight
  CHECK(kept(logits, {.temperature = 1.0F}).size() == 401);
  for (const Index k : {300, 401, 402, 500, 800, 999}) {
    CAPTURE(k);
    CHECK(kept(logits, {.temperature = 1.0F, .top_k = k}).size() == static_cast<std::size_t>(std::min<Index>(k, 401)));
  }
}

TEST_CASE("sampler: infinite logits share all there is, also those that a bias made") {
  Sampler sampler({.logit_bias = {{0, infinity}, {2, infinity}, {3, -infinity}}, .temperature = 1.0F});
  const std::vector<float> logits = {1, 2, 3, 4};
  const std::span<const Candidate> candidates = sampler.candidates(logits, {}, {});
  REQUIRE(candidates.size() == 2);
  CHECK(candidates[0].id == 0);
  CHECK(candidates[1].id == 2);
  CHECK(candidates[0].probability == 0.5);
  Rng rng = request_rng();
  CHECK(sampler.sample(logits, {}, rng, {}).entropy == doctest::Approx(std::log(2.0)));
}

TEST_CASE("sampler: what lies in the last, broken block counts like any other") {
  std::vector<float> logits(256 * 3 + 5, 0.0F);
  logits.back() = 9.0F;
  logits[256 * 3] = 8.0F;
  logits[255] = 7.0F;
  CHECK(greedy_choice(logits) == 772);
  CHECK(kept(logits, {.temperature = 1.0F, .top_k = 3}) == std::vector<TokenId>{255, 768, 772});
  CHECK(kept(logits, {.temperature = 1.0F, .min_p = 0.1F}) == std::vector<TokenId>{255, 768, 772});
  CHECK(kept(logits, {.temperature = 0.1F, .top_p = 0.99999F}) == std::vector<TokenId>{768, 772});
}

TEST_CASE("sampler: what a sampler did before changes nothing") {
  std::mt19937 random(43);
  for (const SamplingParams& params : {SamplingParams{.temperature = 1.0F, .min_p = 0.1F}, SamplingParams{},
                                       SamplingParams{.temperature = 0.7F, .top_k = 30, .top_p = 0.9F},
                                       SamplingParams{.presence_penalty = 1.0F, .temperature = 1.0F, .top_p = 0.9F}}) {
    Sampler used(params);
    for (int i = 0; i < 60; ++i) {
      const std::size_t n = random_size(random);
      const std::vector<float> logits = random_logits(static_cast<Kind>(i % n_kinds), n, random);
      const std::vector<TokenId> history = {0};
      Rng rng = request_rng(static_cast<std::uint64_t>(i));
      Rng same = rng;
      const Sampled next = used.sample(logits, history, rng, {});
      const Sampled expected = Sampler(params).sample(logits, history, same, {});
      CHECK(next.id == expected.id);
      CHECK(next.logprob == expected.logprob);
      CHECK(next.entropy == expected.entropy);
      Sampler fresh(params);
      const std::span<const Candidate> of_fresh = fresh.candidates(logits, history, {});
      const std::span<const Candidate> of_used = used.candidates(logits, history, {});
      CHECK(std::equal(of_used.begin(), of_used.end(), of_fresh.begin(), of_fresh.end(),
                       [](const auto& a, const auto& b) { return a.id == b.id && a.probability == b.probability; }));
    }
  }
}
