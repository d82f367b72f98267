// SPDX-License-Identifier: Apache-2.0
#include "support/attention_model.hpp"
#include "support/bytes_tokenizer.hpp"

#include <tinyllm/batching/scheduler.hpp>
#include <tinyllm/generate/generate.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

using namespace tinyllm;
using test_support::AttentionModel;
using test_support::BytesTokenizer;

namespace {

using Ids = std::vector<TokenId>;
using Pool = BlockPool<float>;

BytesTokenizer letters() {
  std::vector<std::string> words;
  for (char c = 'A'; c < 'A' + 61; ++c) words.emplace_back(1, c);
  return BytesTokenizer(words);
}

std::shared_ptr<Pool> make_pool(const auto& model, Index n_blocks, Index block_size = 4) {
  return std::make_shared<Pool>(pool_dims(cache_dims(model), n_blocks, block_size));
}

Ids random_ids(std::mt19937& random, std::size_t n, unsigned below = 61) {
  Ids ids(n);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % below);
  return ids;
}

struct Job {
  Ids prompt;
  SamplingParams params;
  EosIds eos = EosIds::none();
};

// Of every kind: greedy and drawn, short and long, with stops, end tokens and penalties.
Job random_job(std::mt19937& random) {
  Job job;
  // Few beginnings, so that many prompts share one.
  job.prompt = Ids(1 + random() % 9, static_cast<TokenId>(random() % 2));
  const Ids rest = random_ids(random, random() % 5, 3);
  job.prompt.insert(job.prompt.end(), rest.begin(), rest.end());
  job.params.max_tokens = static_cast<Index>(1 + random() % 12);
  if (random() % 2 == 0) {
    job.params.temperature = 0.9F;
    job.params.top_p = 0.95F;
    job.params.seed = random() % 5;
  }
  if (random() % 3 == 0) job.params.repetition_penalty = 1.3F;
  if (random() % 3 == 0) job.params.stop = {std::string(1, static_cast<char>('A' + random() % 61)), "AB"};
  if (random() % 4 == 0) job.params.min_tokens = 2;
  if (random() % 3 == 0) job.eos = {static_cast<TokenId>(random() % 61), static_cast<TokenId>(random() % 61)};
  return job;
}

Generation alone(const AttentionModel& model, const BytesTokenizer& tokenizer, const Job& job, Index capacity) {
  CacheDims dims = cache_dims(model);
  dims.max_len = std::min(dims.max_len, capacity);
  KVCache<float> cache(dims);
  return generate(model, tokenizer, job.prompt, job.params, cache, {}, job.eos);
}

void check_same(const Generation& out, const Generation& expected) {
  CHECK(out.ids == expected.ids);
  CHECK(out.text == expected.text);
  CHECK(out.logprobs == expected.logprobs);
  CHECK(out.entropies == expected.entropies);
  CHECK(out.stop_kind == expected.stop_kind);
  CHECK(out.matched_stop == expected.matched_stop);
  CHECK(out.prompt_ids == expected.prompt_ids);
}

// The model beside a record of what each pass was given, and what it is made to do wrong.
struct Watched {
  const AttentionModel& model;
  AttentionModel::Config config = model.config;
  struct Row {
    Ids ids;
    Index first;
    Index n_logits;
  };
  std::vector<std::vector<Row>> passes = {};
  Index fail_at_pass = -1;
  TokenId poisoned_by = -1;  // an id whose row of logits is not a number
  TokenId refused = -1;      // an id that it throws for, when the caches hold the pass already
  unsigned fail_every = 0;   // about every so many passes
  std::mt19937 random = std::mt19937(1);

  template <class Cache>
  RowMatrix forward_batch(std::span<const BatchEntry<Cache>> batch) {
    std::vector<Row> pass;
    for (const auto& entry : batch) {
      CHECK(entry.positions.first() == entry.cache->seq_len());
      CHECK(entry.positions.size() == static_cast<Index>(entry.ids.size()));
      pass.push_back({Ids(entry.ids.begin(), entry.ids.end()), entry.positions.first(), entry.n_logits});
    }
    passes.push_back(pass);
    RowMatrix logits = model.forward_batch(batch);
    if (static_cast<Index>(passes.size()) - 1 == fail_at_pass) throw std::runtime_error("the model failed");
    if (fail_every > 0 && random() % fail_every == 0) throw std::runtime_error("the model failed");
    for (const auto& row : pass) {
      if (std::find(row.ids.begin(), row.ids.end(), refused) != row.ids.end())
        throw std::out_of_range("the model refused an id");
    }
    Index row = 0;
    for (const auto& entry : batch) {
      if (entry.n_logits > 0 && entry.ids.back() == poisoned_by) {
        logits.row(row).setConstant(std::numeric_limits<float>::quiet_NaN());
      }
      row += entry.n_logits;
    }
    return logits;
  }
};

Index rows_of(const std::vector<Watched::Row>& pass) {
  Index rows = 0;
  for (const auto& row : pass) rows += static_cast<Index>(row.ids.size());
  return rows;
}

}  // namespace

static_assert(BatchCausalLM<const AttentionModel, PagedKVCache<float>>);
static_assert(!BatchCausalLM<BytesTokenizer, PagedKVCache<float>>);

TEST_CASE("scheduler: 64 requests with 512 tokens in common store them once, compute them once, and answer as alone") {
  AttentionModel::Config sizes;
  sizes.num_hidden_layers = 2;
  sizes.num_attention_heads = 2;
  sizes.num_key_value_heads = 1;
  sizes.head_dim = 4;
  sizes.max_position_embeddings = 600;
  const AttentionModel model(sizes, 5);
  const BytesTokenizer tokenizer = letters();
  std::mt19937 random(1);
  const Ids common = random_ids(random, 512);
  for (const Index budget : {100, 512, 5000}) {
    CAPTURE(budget);
    const auto pool = make_pool(model, 200, 16);
    Watched watched{.model = model};
    Scheduler scheduler(watched, tokenizer, pool, {.token_budget = budget});
    std::vector<Job> jobs;
    std::vector<std::future<Generation>> answers;
    Index own_rows = 0;
    for (int i = 0; i < 64; ++i) {
      Job job{common, {.max_tokens = 4, .temperature = i % 2 == 0 ? 0.0F : 1.0F, .seed = static_cast<std::uint64_t>(i)}};
      const Ids own = random_ids(random, 2 + static_cast<std::size_t>(i) % 5);
      job.prompt.insert(job.prompt.end(), own.begin(), own.end());
      own_rows += static_cast<Index>(own.size()) + 4 - 1;
      jobs.push_back(job);
      answers.push_back(scheduler.submit(job.prompt, job.params, nullptr, job.eos));
    }
    Index most_held = 0;
    Index most_shared = 0;
    while (scheduler.step()) {
      most_held = std::max(most_held, pool->ledger().held());
      most_shared = std::max(most_shared, pool->ledger().shared());
    }
    CHECK(most_shared == 32);
    CHECK(most_held <= 32 + 64);
    CHECK(scheduler.stats().rows == 512 + own_rows);
    CHECK(scheduler.stats().preemptions == 0);
    CHECK(scheduler.prefix_stats().hit_tokens == 63 * 512);
    Index counted = 0;
    for (const auto& pass : watched.passes) {
      CHECK(rows_of(pass) <= budget);
      counted += rows_of(pass);
    }
    CHECK(counted == scheduler.stats().rows);
    for (std::size_t i = 0; i < 64; ++i) {
      const Generation out = answers[i].get();
      CHECK(out.stats.cached_tokens == (i == 0 ? 0 : 512));
      if (budget == 512) {
        check_same(out, alone(model, tokenizer, jobs[i], 600));
      } else {
        CHECK(out.ids.size() == 4);
      }
    }
    CHECK(pool->ledger().held() == 0);
  }
}

TEST_CASE("scheduler: whatever arrives, cancels and is set aside under a tiny pool, each request answers as alone") {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  Index preemptions = 0;
  std::size_t cancelled = 0;
  std::size_t hits = 0;
  for (unsigned seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto pool = make_pool(model, 7 + static_cast<Index>(random() % 6), 1 + static_cast<Index>(random() % 4));
    const SchedulerOptions options{.token_budget = static_cast<Index>(1 + random() % 20),
                                   .max_running = static_cast<Index>(1 + random() % 6),
                                   .share_prefixes = random() % 4 != 0};
    Scheduler scheduler(model, tokenizer, pool, options);
    struct Sent {
      Job job;
      std::future<Generation> answer;
      std::stop_source cancel;
      std::shared_ptr<std::string> streamed = std::make_shared<std::string>();
      std::size_t cancel_after = SIZE_MAX;  // bytes
    };
    std::vector<std::unique_ptr<Sent>> all;
    for (int tick = 0; tick < 60; ++tick) {
      while (all.size() < 14 && random() % 3 == 0) {
        auto sent = std::make_unique<Sent>();
        sent->job = random_job(random);
        if (static_cast<Index>(sent->job.prompt.size()) >= pool->capacity()) continue;
        if (random() % 5 == 0) sent->cancel_after = random() % 6;
        SamplingParams params = sent->job.params;
        params.cancel = sent->cancel.get_token();
        sent->answer = scheduler.submit(
            sent->job.prompt, params,
            [to = sent->streamed, after = sent->cancel_after, source = sent->cancel](std::string_view piece) mutable {
              *to += piece;
              if (to->size() > after) source.request_stop();
            },
            sent->job.eos);
        all.push_back(std::move(sent));
      }
      if (random() % 25 == 0 && !all.empty()) all[random() % all.size()]->cancel.request_stop();
      scheduler.step();
    }
    scheduler.run();
    CHECK(scheduler.n_running() + scheduler.n_waiting() == 0);
    CHECK_FALSE(scheduler.step());
    CHECK(pool->ledger().held() == 0);
    CHECK(pool->ledger().available() == pool->ledger().size());
    preemptions += scheduler.stats().preemptions;
    hits += scheduler.prefix_stats().hits;
    for (const auto& sent : all) {
      const Generation out = sent->answer.get();
      const Generation expected = alone(model, tokenizer, sent->job, pool->capacity());
      CHECK(out.text == *sent->streamed);
      if (out.finish_reason == FinishReason::cancelled) {
        ++cancelled;
        CHECK(expected.ids.size() >= out.ids.size());
        CHECK(std::equal(out.ids.begin(), out.ids.end(), expected.ids.begin()));
      } else {
        check_same(out, expected);
      }
    }
  }
  CHECK(preemptions > 20);
  CHECK(cancelled > 20);
  CHECK(hits > 20);
}

TEST_CASE("scheduler: long prompts come in chunks beside decoding requests, and no pass is larger than its budget") {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  std::mt19937 random(4);
  Watched watched{.model = model};
  Scheduler scheduler(watched, tokenizer, make_pool(model, 64), {.token_budget = 8});
  auto first = scheduler.submit(random_ids(random, 3), {.max_tokens = 10});
  scheduler.step();
  const Ids prompt = random_ids(random, 20);
  auto second = scheduler.submit(prompt, {.max_tokens = 2});
  scheduler.run();
  REQUIRE(watched.passes.size() == 10);
  CHECK(rows_of(watched.passes[0]) == 3);
  Index done = 0;
  for (std::size_t i = 1; i <= 3; ++i) {  // 7 + 7 + 6 rows of the prompt, each beside one of the first request
    REQUIRE(watched.passes[i].size() == 2);
    CHECK(watched.passes[i][0].ids.size() == 1);
    CHECK(watched.passes[i][0].n_logits == 1);
    CHECK(watched.passes[i][1].first == done);
    CHECK(watched.passes[i][1].n_logits == (i == 3 ? 1 : 0));
    done += static_cast<Index>(watched.passes[i][1].ids.size());
    CHECK(rows_of(watched.passes[i]) <= 8);
  }
  CHECK(done == 20);
  CHECK(watched.passes[1][1].ids.size() == 7);
  const Generation out = second.get();
  CHECK(out.stats.forward_calls == 4);
  CHECK(out.stats.forward_rows == 21);
  CHECK(out.stats.prompt_tokens == 20);
  CHECK(out.stats.cache_bytes == 6 * scheduler.pool()->block_nbytes());
  CHECK(out.timings.prefill_s > 0);
  CHECK(out.timings.decode_s > 0);
  CHECK(first.get().stats.forward_rows == 3 + 9);
  CHECK(scheduler.stats().passes == 10);
}

TEST_CASE("scheduler: an older prompt leaves a row to each request behind it") {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  std::mt19937 random(4);
  // Room for two at first: the third request decodes while the first is computed again.
  Watched watched{.model = model};
  Scheduler scheduler(watched, tokenizer, make_pool(model, 64), {.token_budget = 4});
  auto a = scheduler.submit(random_ids(random, 2), {.max_tokens = 30});
  auto b = scheduler.submit(random_ids(random, 2), {.max_tokens = 30});
  scheduler.step();
  auto c = scheduler.submit(random_ids(random, 11), {.max_tokens = 3});
  scheduler.run();
  for (std::size_t i = 1; i < 6; ++i) {
    CHECK(watched.passes[i].size() == 3);
    CHECK(rows_of(watched.passes[i]) <= 4);
  }
}

TEST_CASE("scheduler: when blocks run out the youngest is set aside, keeps its text, and goes on later") {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  std::mt19937 random(9);
  const auto pool = make_pool(model, 6);
  Watched watched{.model = model};
  Scheduler scheduler(watched, tokenizer, pool, {.share_prefixes = false});
  const Job old{random_ids(random, 7), {.max_tokens = 13}};
  const Job young{random_ids(random, 6), {.max_tokens = 13}};
  std::string streamed;
  auto a = scheduler.submit(old.prompt, old.params, nullptr, old.eos);
  auto b = scheduler.submit(
      young.prompt, young.params, [&](std::string_view piece) { streamed += piece; }, young.eos);
  bool waited = false;
  while (scheduler.step()) {
    if (scheduler.stats().preemptions > 0 && scheduler.n_waiting() == 1) {
      waited = true;
      CHECK(scheduler.n_running() <= 1);
    }
  }
  CHECK(waited);
  CHECK(scheduler.stats().preemptions == 1);
  const Generation out = b.get();
  check_same(a.get(), alone(model, tokenizer, old, 24));
  check_same(out, alone(model, tokenizer, young, 24));
  CHECK(streamed == out.text);
  CHECK(out.stats.forward_rows > 6 + 12);  // some were computed twice
  CHECK(out.stats.cached_tokens == 0);
}

TEST_CASE("scheduler: a client that throws or says no ends its own request and no other") {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  std::mt19937 random(2);
  const auto pool = make_pool(model, 64);
  Scheduler scheduler(model, tokenizer, pool, {});
  std::vector<Job> jobs;
  for (int i = 0; i < 3; ++i) jobs.push_back({random_ids(random, 5), {.max_tokens = 9}});
  int pieces = 0;
  int refused = 0;
  auto throwing = scheduler.submit(
      jobs[0].prompt, jobs[0].params,
      [&pieces](std::string_view) {
        if (++pieces == 3) throw std::runtime_error("the client is gone");
      },
      jobs[0].eos);
  auto refusing = scheduler.submit(
      jobs[1].prompt, jobs[1].params, [&refused](std::string_view) { return ++refused < 2; }, jobs[1].eos);
  auto good = scheduler.submit(jobs[2].prompt, jobs[2].params, nullptr, jobs[2].eos);
  scheduler.run();
  CHECK_THROWS_WITH(throwing.get(), "the client is gone");
  CHECK(pieces == 3);
  const Generation cut = refusing.get();
  CHECK(refused == 2);
  CHECK(cut.finish_reason == FinishReason::cancelled);
  CHECK(cut.ids.size() == 2);
  check_same(good.get(), alone(model, tokenizer, jobs[2], 64));
  CHECK(pool->ledger().held() == 0);
}

TEST_CASE("scheduler: logits that allow no choice end their own request, and nothing of them is shared") {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  Watched watched{.model = model};
  watched.poisoned_by = 60;
  const auto pool = make_pool(model, 64);
  Scheduler scheduler(watched, tokenizer, pool, {});
  const Job job{{1, 2, 3, 4, 5}, {.max_tokens = 4, .logit_bias = {{60, -100.0F}}}};
  auto bad = scheduler.submit(Ids{7, 7, 7, 60}, {.max_tokens = 4});
  auto good = scheduler.submit(job.prompt, job.params, nullptr, job.eos);
  scheduler.run();
  CHECK_THROWS_AS(bad.get(), std::invalid_argument);
  check_same(good.get(), alone(model, tokenizer, job, 64));
  watched.poisoned_by = -1;
  const Generation again = [&] {
    auto answer = scheduler.submit(Ids{7, 7, 7, 60}, {.max_tokens = 4});
    scheduler.run();
    return answer.get();
  }();
  CHECK(again.stats.cached_tokens == 0);
}

TEST_CASE("scheduler: a model that throws leaves every request as it was, and the next step goes on") {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  std::mt19937 random(6);
  for (const Index failing : {0, 2, 5}) {
    const auto pool = make_pool(model, 64);
    Watched watched{.model = model};
    watched.fail_at_pass = failing;
    Scheduler scheduler(watched, tokenizer, pool, {.token_budget = 6});
    std::vector<Job> jobs;
    std::vector<std::future<Generation>> answers;
    for (int i = 0; i < 3; ++i) {
      jobs.push_back({random_ids(random, 8), {.max_tokens = 5, .temperature = 1.0F}});
      answers.push_back(scheduler.submit(jobs.back().prompt, jobs.back().params, nullptr, jobs.back().eos));
    }
    CHECK_THROWS_WITH(scheduler.run(), "the model failed");
    scheduler.run();
    for (std::size_t i = 0; i < 3; ++i) check_same(answers[i].get(), alone(model, tokenizer, jobs[i], 64));
    CHECK(pool->ledger().held() == 0);
  }
}

namespace {

// Steps until nothing is left to do, whatever throws. Returns how often a step threw.
int run_through(auto& scheduler) {
  int thrown = 0;
  for (int i = 0; i < 1000; ++i) {
    try {
      if (!scheduler.step()) return thrown;
    } catch (const std::exception&) {
      ++thrown;
    }
  }
  FAIL("requests are blocked");
  return thrown;
}

}  // namespace

TEST_CASE("scheduler: a request that the model always refuses ends with what the model throws, and the others go on") {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  std::mt19937 random(6);
  for (const Index budget : {3, 7, 100}) {
    for (const bool alone_in_the_end : {false, true}) {
      CAPTURE(budget);
      const auto pool = make_pool(model, 64);
      Watched watched{.model = model};
      watched.refused = 60;
      Scheduler scheduler(watched, tokenizer, pool, {.token_budget = budget});
      std::vector<Job> jobs;
      std::vector<std::future<Generation>> answers;
      const auto submit_good = [&] {
        jobs.push_back({random_ids(random, 8, 60), {.max_tokens = 5, .logit_bias = {{60, -100.0F}}, .temperature = 1.0F}});
        answers.push_back(scheduler.submit(jobs.back().prompt, jobs.back().params, nullptr, jobs.back().eos));
      };
      if (!alone_in_the_end) submit_good();
      scheduler.step();
      Ids prompt = random_ids(random, 9, 60);
      prompt[6] = 60;
      auto bad = scheduler.submit(prompt, {.max_tokens = 5});
      if (!alone_in_the_end) {
        submit_good();
        submit_good();
      }
      const int thrown = run_through(scheduler);
      CHECK(thrown >= 1);
      CHECK(thrown <= 3);  // the pass that had the id in it, and again if a smaller one of its own had not
      CHECK_THROWS_WITH_AS(bad.get(), "the model refused an id", std::out_of_range);
      for (std::size_t i = 0; i < answers.size(); ++i) check_same(answers[i].get(), alone(model, tokenizer, jobs[i], 64));
      CHECK(pool->ledger().held() == 0);
      for (const auto& pass : watched.passes) CHECK(rows_of(pass) <= budget);
      // What it left behind is right.
      Ids beginning(prompt.begin(), prompt.begin() + 6);
      const Job next{beginning, {.max_tokens = 3, .logit_bias = {{60, -100.0F}}}};
      auto answer = scheduler.submit(next.prompt, next.params, nullptr, next.eos);
      CHECK(run_through(scheduler) == 0);
      check_same(answer.get(), alone(model, tokenizer, next, 64));
    }
  }
}

TEST_CASE("scheduler: whichever passes throw, each request answers as alone or ends with what its own pass threw") {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  int answered = 0;
  int failed = 0;
  Index preemptions = 0;
  for (unsigned seed = 0; seed < 30; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto pool = make_pool(model, 7 + static_cast<Index>(random() % 6), 1 + static_cast<Index>(random() % 4));
    Watched watched{.model = model};
    watched.refused = static_cast<TokenId>(random() % 3);
    watched.fail_every = 4;
    watched.random.seed(seed);
    Scheduler scheduler(watched, tokenizer, pool,
                        {.token_budget = static_cast<Index>(1 + random() % 20), .share_prefixes = random() % 4 != 0});
    std::vector<Job> jobs;
    std::vector<std::future<Generation>> answers;
    while (jobs.size() < 12) {
      Job job = random_job(random);
      if (static_cast<Index>(job.prompt.size()) >= pool->capacity()) continue;
      answers.push_back(scheduler.submit(job.prompt, job.params, nullptr, job.eos));
      jobs.push_back(std::move(job));
    }
    run_through(scheduler);
    CHECK(pool->ledger().held() == 0);
    preemptions += scheduler.stats().preemptions;
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      try {
        check_same(answers[i].get(), alone(model, tokenizer, jobs[i], pool->capacity()));
        ++answered;
      } catch (const std::runtime_error&) {
        ++failed;
      } catch (const std::out_of_range&) {
        ++failed;
      }
    }
  }
  CHECK(answered > 50);
  CHECK(failed > 50);
  CHECK(preemptions > 0);
}

TEST_CASE("scheduler: a request that waits for blocks counts no prefix query and makes no block younger") {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  const auto pool = make_pool(model, 8);
  Scheduler scheduler(model, tokenizer, pool, {});
  const Ids known(16, 1);
  auto first = scheduler.submit(known, {.max_tokens = 1}, nullptr, EosIds::none());
  scheduler.run();
  CHECK(pool->ledger().idle() == 4);
  // Of eight blocks the second request holds two, then three, then four; the third one would take six.
  auto second = scheduler.submit(Ids(8, 2), {.max_tokens = 8}, nullptr, EosIds::none());
  scheduler.step();
  Ids longer = known;
  longer.insert(longer.end(), 8, 3);
  auto third = scheduler.submit(longer, {.max_tokens = 1}, nullptr, EosIds::none());
  for (int i = 0; i < 5; ++i) {
    scheduler.step();
    CHECK(scheduler.n_waiting() == 1);
    CHECK(scheduler.prefix_stats().queries == 2);
  }
  scheduler.run();
  CHECK(second.get().ids.size() == 8);
  CHECK(third.get().stats.cached_tokens == 16);
  CHECK(scheduler.prefix_stats().queries == 3);
  CHECK(scheduler.prefix_stats().hits == 1);
  CHECK(scheduler.prefix_stats().asked_tokens == 16 + 8 + 24);
  CHECK(scheduler.prefix_stats().hit_tokens == 16);
  CHECK(scheduler.stats().preemptions == 0);
}

TEST_CASE("scheduler: the same prompt again computes one token of it; another salt computes all") {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  std::mt19937 random(8);
  const Ids prompt = random_ids(random, 16);
  Scheduler scheduler(model, tokenizer, make_pool(model, 64), {});
  const auto run = [&](PrefixSalt salt) {
    auto answer = scheduler.submit(prompt, {.max_tokens = 4}, nullptr, EosIds::none(), salt);
    scheduler.run();
    return answer.get();
  };
  const Generation first = run(0);
  const Generation second = run(0);
  CHECK(first.stats.forward_rows == 16 + 3);
  CHECK(second.stats.forward_rows == 1 + 3);
  CHECK(second.stats.cached_tokens == 15);
  check_same(second, first);
  CHECK(run(1).stats.cached_tokens == 0);
  // A block that the last pass of a request fills is known to the next one.
  const Ids odd = random_ids(random, 11);
  auto filling = scheduler.submit(odd, {.max_tokens = 2}, nullptr, EosIds::none());
  scheduler.run();
  Ids longer = odd;
  const Generation filled = filling.get();
  longer.insert(longer.end(), filled.ids.begin(), filled.ids.end());
  auto next = scheduler.submit(longer, {.max_tokens = 1});
  scheduler.run();
  CHECK(next.get().stats.cached_tokens == 12);
  // Another turn of the conversation: the answer's full blocks are known too.
  Ids turn = prompt;
  turn.insert(turn.end(), first.ids.begin(), first.ids.end());
  turn.insert(turn.end(), {1, 2, 3});
  auto answer = scheduler.submit(turn, {.max_tokens = 1});
  scheduler.run();
  CHECK(answer.get().stats.cached_tokens == 16);
}

TEST_CASE("scheduler: a cancelled prompt leaves nothing but whole blocks for others behind") {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  std::mt19937 random(8);
  const Ids prompt = random_ids(random, 30);
  const auto pool = make_pool(model, 16);
  Scheduler scheduler(model, tokenizer, pool, {.token_budget = 7});
  std::stop_source source;
  SamplingParams params{.max_tokens = 4, .cancel = source.get_token()};
  auto answer = scheduler.submit(prompt, params);
  scheduler.step();
  scheduler.step();
  source.request_stop();
  CHECK_FALSE(scheduler.step());
  const Generation out = answer.get();
  CHECK(out.finish_reason == FinishReason::cancelled);
  CHECK(out.ids.empty());
  CHECK(out.text.empty());
  CHECK(pool->ledger().held() == 0);
  CHECK(pool->ledger().idle() == 3);  // 14 positions: three whole blocks
  // Cancelled before it ever ran.
  auto late = scheduler.submit(prompt, params);
  CHECK_FALSE(scheduler.step());
  CHECK(late.get().stats.forward_rows == 0);
}

TEST_CASE("scheduler: what cannot be run is refused at once; what needs no pass is ready at once") {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  const auto pool = make_pool(model, 5);  // 20 positions
  Scheduler scheduler(model, tokenizer, pool, {});
  CHECK_THROWS_AS(scheduler.submit(Ids{}), std::invalid_argument);
  CHECK_THROWS_AS(scheduler.submit(Ids(20, 1)), std::invalid_argument);
  CHECK_THROWS_AS(scheduler.submit(Ids{1}, {.temperature = -1.0F}), std::invalid_argument);
  CHECK_FALSE(scheduler.step());
  auto none = scheduler.submit("HELLO", {.max_tokens = 0});
  CHECK_FALSE(scheduler.step());
  CHECK(none.get().stop_kind == StopKind::max_tokens);
  CHECK(scheduler.stats().passes == 0);
  // The pool is the context.
  auto all = scheduler.submit(Ids(19, 1), {}, nullptr, EosIds::none());
  auto more = scheduler.submit(Ids(5, 2), {}, nullptr, EosIds::none());
  scheduler.run();
  CHECK(all.get().ids.size() == 1);
  const Generation long_one = more.get();
  CHECK(long_one.ids.size() == 15);
  CHECK(long_one.stop_kind == StopKind::context);

  CHECK_THROWS_AS(Scheduler(model, tokenizer, std::shared_ptr<Pool>(), {}), std::invalid_argument);
  CHECK_THROWS_AS(Scheduler(model, tokenizer, pool, {.token_budget = 0}), std::invalid_argument);
  CHECK_THROWS_AS(Scheduler(model, tokenizer, pool, {.max_running = 0}), std::invalid_argument);
}

TEST_CASE("scheduler: blocks that somebody else holds for good are an error of the request that needs them") {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  const auto pool = make_pool(model, 4);
  Scheduler scheduler(model, tokenizer, pool, {});
  PagedKVCache<float> other(pool);
  REQUIRE(other.reserve(8));
  auto grows = scheduler.submit(Ids(7, 1), {.max_tokens = 6}, nullptr, EosIds::none());
  scheduler.run();
  try {
    grows.get();
    FAIL("somebody else held the blocks");
  } catch (const OutOfBlocks& error) {
    CHECK(error.requested() == 1);
    CHECK(error.seq_len() == 8);
    CHECK(error.capacity() == 8);
    CHECK(error.blocks().needed == 1);
    CHECK(error.blocks().available == 0);
  }
  auto large = scheduler.submit(Ids(9, 1), {.max_tokens = 2}, nullptr, EosIds::none());
  scheduler.run();
  try {
    large.get();
    FAIL("somebody else held the blocks");
  } catch (const OutOfBlocks& error) {
    CHECK(error.requested() == 9);
    CHECK(error.seq_len() == 0);
    CHECK(error.capacity() == 8);  // two blocks of four
    CHECK(error.blocks().needed == 3);
    CHECK(error.blocks().available == 2);
    CHECK(error.blocks().size == 4);
  }
  other.clear();
  auto fits = scheduler.submit(Ids(9, 1), {.max_tokens = 2}, nullptr, EosIds::none());
  scheduler.run();
  CHECK(fits.get().ids.size() == 2);
}

TEST_CASE("scheduler: a model that gives logits for other rows than those asked for is an error") {
  struct Wrong {
    AttentionModel::Config config;
    RowMatrix forward_batch(std::span<const BatchEntry<PagedKVCache<float>>> batch) {
      return RowMatrix::Zero(static_cast<Index>(batch.size()) + 1, 61);
    }
  } wrong;
  const BytesTokenizer tokenizer = letters();
  const auto pool = make_pool(wrong, 4);
  {
    Scheduler scheduler(wrong, tokenizer, pool, {});
    auto answer = scheduler.submit("HELLO");
    CHECK_THROWS_AS(scheduler.step(), std::invalid_argument);
  }
  CHECK(pool->ledger().free() == 4);
}

TEST_CASE("scheduler: requests may come from many threads while another one runs them") {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  const auto pool = make_pool(model, 20);
  Scheduler scheduler(model, tokenizer, pool, {.token_budget = 16});
  std::jthread server([&](std::stop_token stop) {
    while (scheduler.wait(stop)) scheduler.step();
  });
  std::vector<std::thread> clients;
  std::atomic<int> right = 0;
  for (unsigned c = 0; c < 3; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 random(c);
      for (int i = 0; i < 5; ++i) {
        const Job job = random_job(random);
        const Generation out = scheduler.submit(job.prompt, job.params, nullptr, job.eos).get();
        right += out.ids == alone(model, tokenizer, job, pool->capacity()).ids ? 1 : 0;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  server.request_stop();
  server.join();
  CHECK(right == 15);
  CHECK(pool->ledger().held() == 0);
}

TEST_CASE("scheduler: requests that are left behind have a broken promise, and their blocks go back") {
  const AttentionModel model;
  const BytesTokenizer tokenizer = letters();
  const auto pool = make_pool(model, 20);
  std::future<Generation> answer;
  {
    Scheduler scheduler(model, tokenizer, pool, {});
    answer = scheduler.submit("HELLO", {.max_tokens = 9});
    scheduler.step();
    CHECK(pool->ledger().held() > 0);
  }
  CHECK_THROWS_AS(answer.get(), std::future_error);
  CHECK(pool->ledger().free() == 20);
}

TEST_CASE("batch: sequences of one batch grow and rewind separately") {
  CHECK(BatchEntry<PagedKVCache<float>>{}.n_logits == 1);  // as a decode step wants
  const AttentionModel model;
  const auto pool = make_pool(model, 64);
  std::mt19937 random(3);
  std::vector<PagedKVCache<float>> caches;
  std::vector<Ids> known(3);
  for (int i = 0; i < 3; ++i) caches.emplace_back(pool);
  for (int round = 0; round < 8; ++round) {
    std::vector<Ids> fresh;
    std::vector<BatchEntry<PagedKVCache<float>>> batch;
    for (std::size_t i = 0; i < 3; ++i) {
      // Each goes back to a place of its own.
      known[i].resize(random() % (known[i].size() + 1));
      caches[i].truncate(static_cast<Index>(known[i].size()));
      fresh.push_back(random_ids(random, 1 + random() % 4));
    }
    Index wanted = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      const auto n = static_cast<Index>(fresh[i].size());
      batch.push_back({.ids = fresh[i],
                       .positions = caches[i].positions(n),
                       .cache = &caches[i],
                       .n_logits = static_cast<Index>(random() % static_cast<unsigned>(n + 1))});
      wanted += batch.back().n_logits;
    }
    const RowMatrix logits = model.forward_batch(std::span<const BatchEntry<PagedKVCache<float>>>(batch));
    REQUIRE(logits.rows() == wanted);
    Index row = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      known[i].insert(known[i].end(), fresh[i].begin(), fresh[i].end());
      CHECK(caches[i].seq_len() == static_cast<Index>(known[i].size()));
      const RowMatrix full = model.forward_full(known[i]);
      const Index n = batch[i].n_logits;
      if (n > 0) CHECK((logits.middleRows(row, n) - full.bottomRows(n)).cwiseAbs().maxCoeff() <= 1e-5F);
      row += n;
    }
  }
}
