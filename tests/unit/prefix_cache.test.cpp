// SPDX-License-Identifier: Apache-2.0
#include "support/token_rows.hpp"

#include <tinyllm/cache/prefix_cache.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <numeric>
#include <optional>

using namespace tinyllm;
using test_support::append;
using test_support::holds;

namespace {

using Ids = std::vector<TokenId>;
using Pool = BlockPool<float>;
using Paged = PagedKVCache<float>;

// Every block has the same hash: only the tokens tell them apart.
struct Colliding {
  std::uint64_t operator()(std::uint64_t, std::span<const TokenId>) const { return 7; }
};

std::shared_ptr<Pool> make_pool(Index n_blocks = 16) {
  return std::make_shared<Pool>(
      BlockPoolDims{.n_layers = 2, .n_kv_heads = 1, .d_head = 2, .n_blocks = n_blocks, .block_size = 4});
}

Ids ids(Index n, TokenId first = 1) {
  Ids out(static_cast<std::size_t>(n));
  std::iota(out.begin(), out.end(), first);
  return out;
}

Ids first(const Ids& of, Index n) { return Ids(of.begin(), of.begin() + n); }

Paged filled(const std::shared_ptr<Pool>& pool, const Ids& tokens) {
  Paged cache(pool);
  append(cache, tokens);
  return cache;
}

// A prompt as an engine runs it: what is known is taken, the rest computed, all of it published.
template <class Prefixes>
Paged run(Prefixes& prefixes, const std::shared_ptr<Pool>& pool, const Ids& prompt, PrefixSalt salt = 0) {
  Paged cache(pool);
  const Index held = prefixes.take(prompt, cache, salt);
  append(cache, std::span(prompt).subspan(static_cast<std::size_t>(held)));
  prefixes.publish(prompt, cache, salt);
  return cache;
}

}  // namespace

template class tinyllm::BasicPrefixCache<>;
template class tinyllm::BasicPrefixCache<Colliding>;

TEST_CASE("prefix cache: a prompt begins with the longest known run of full blocks, which is stored once") {
  const auto pool = make_pool();
  PrefixCache prefixes(pool);
  const Paged a = filled(pool, ids(11));
  CHECK(prefixes.match(ids(11)) == 0);
  prefixes.publish(ids(11), a);
  CHECK(prefixes.match(ids(11)) == 8);

  Paged b(pool);
  CHECK(prefixes.take(ids(30), b) == 8);
  CHECK(holds(b, first(ids(30), 8)));
  CHECK(pool->ledger().held() == 3);
  CHECK(pool->ledger().shared() == 2);
  append(b, ids(3, 100));
  CHECK(holds(a, ids(11)));

  // Another beginning, or one that differs in the second block.
  CHECK(prefixes.match(ids(11, 2)) == 0);
  Ids other = ids(11);
  other[6] = 99;
  CHECK(prefixes.match(other) == 4);
  other[0] = 99;
  CHECK(prefixes.match(other) == 0);

  // The second block's tokens at another place are another block.
  CHECK(prefixes.match(ids(7, 5)) == 0);

  const PrefixCacheStats& stats = prefixes.stats();
  CHECK(stats.queries == 1);
  CHECK(stats.hits == 1);
  CHECK(stats.asked_tokens == 30);
  CHECK(stats.hit_tokens == 8);
}

TEST_CASE("prefix cache: a hit leaves at least one token to compute") {
  const auto pool = make_pool();
  PrefixCache prefixes(pool);
  const Paged a = filled(pool, ids(12));
  prefixes.publish(ids(12), a);
  for (Index n = 0; n <= 14; ++n) {
    CAPTURE(n);
    const Index expected = n == 0 ? 0 : std::min(n / 4 * 4, n - 1);
    const Index known = std::min<Index>(expected, n > 12 ? 12 : 11);
    Paged cache(pool);
    CHECK(prefixes.match(ids(n)) == known);
    CHECK(prefixes.take(ids(n), cache) == known);
    CHECK(cache.seq_len() == known);
    CHECK(holds(cache, ids(known)));
    // The last block of a prompt of whole blocks is shared, and copied before its last position is written.
    append(cache, ids(2, 200));
    CHECK(holds(a, ids(12)));
    CHECK(prefixes.match(ids(13)) == 12);
  }
  CHECK(pool->ledger().held() == 3);
}

TEST_CASE("prefix cache: equal hashes are not equal tokens") {
  const auto pool = make_pool();
  BasicPrefixCache<Colliding> prefixes(pool, Colliding{});
  const Paged a = run(prefixes, pool, ids(9));
  CHECK(prefixes.match(ids(9, 2)) == 0);
  const Paged b = run(prefixes, pool, ids(9, 50));
  CHECK(holds(b, ids(9, 50)));
  CHECK(prefixes.match(ids(9)) == 8);
  CHECK(prefixes.match(ids(9, 50)) == 8);
  // The first block of one, the second of the other.
  Ids mixed = ids(9);
  std::copy_n(ids(9, 50).begin() + 4, 4, mixed.begin() + 4);
  CHECK(prefixes.match(mixed) == 4);
  CHECK(prefixes.match(ids(9), 1) == 0);  // another salt
}

TEST_CASE("prefix cache: sequences with different salts share nothing") {
  const auto pool = make_pool();
  PrefixCache prefixes(pool);
  const Paged a = run(prefixes, pool, ids(9), 1);
  CHECK(prefixes.match(ids(9), 1) == 8);
  CHECK(prefixes.match(ids(9), 2) == 0);
  CHECK(prefixes.match(ids(9)) == 0);
  const Paged b = run(prefixes, pool, ids(9), 2);
  CHECK(pool->ledger().shared() == 0);
  CHECK(prefixes.match(ids(9), 2) == 8);
}

TEST_CASE("prefix cache: blocks outlive their sequence, count as reclaimable, and go when the pool runs dry") {
  const auto pool = make_pool(6);
  const BlockLedger& ledger = pool->ledger();
  PrefixCache prefixes(pool);
  { const Paged a = run(prefixes, pool, ids(9)); }
  CHECK(ledger.held() == 0);
  CHECK(ledger.idle() == 2);
  CHECK(ledger.available() == 6);
  CHECK(prefixes.match(ids(9)) == 8);

  // Four blocks are free; a fifth comes from the end of what is kept, so that its beginning can still be found.
  Paged big(pool);
  append(big, ids(16, 100));
  CHECK(prefixes.match(ids(9)) == 8);
  append(big, ids(1, 116));
  CHECK(prefixes.match(ids(9)) == 4);
  CHECK(ledger.evictions() == 1);
  append(big, ids(7, 117));
  CHECK(prefixes.match(ids(9)) == 0);
  CHECK(ledger.evictions() == 2);
  CHECK(holds(big, ids(24, 100)));
  CHECK_THROWS_AS(append(big, ids(1)), CacheFull);
}

TEST_CASE("prefix cache: of two prefixes the one that was used longer ago goes first, and what is in use stays") {
  const auto pool = make_pool(4);
  PrefixCache prefixes(pool);
  { const Paged a = run(prefixes, pool, ids(5)); }
  { const Paged b = run(prefixes, pool, ids(5, 50)); }
  { const Paged again = run(prefixes, pool, ids(5)); }
  {
    Paged big(pool);
    append(big, ids(9, 100));
    CHECK(prefixes.match(ids(5)) == 4);
    CHECK(prefixes.match(ids(5, 50)) == 0);
    Paged user(pool);
    CHECK(prefixes.take(ids(5), user) == 4);
    CHECK_THROWS_AS(append(big, ids(4, 109)), OutOfBlocks);
    CHECK(pool->ledger().available() == 0);
    CHECK(holds(user, ids(4)));
    CHECK(prefixes.match(ids(5)) == 4);
  }
  CHECK(pool->ledger().available() == 4);
}

TEST_CASE("prefix cache: how many blocks a prompt takes depends on who holds what is known of it") {
  const auto pool = make_pool(6);
  PrefixCache prefixes(pool);
  CHECK(prefixes.blocks_needed(ids(9)) == 3);
  std::optional<Paged> first{run(prefixes, pool, ids(9))};
  CHECK(prefixes.blocks_needed(ids(13)) == 2);  // two of four are held
  CHECK(prefixes.blocks_needed(ids(9)) == 1);
  CHECK(prefixes.blocks_needed(ids(8)) == 1);  // the second one's last position is computed again, in a copy
  CHECK(prefixes.blocks_needed(ids(13), 1) == 4);
  first.reset();
  CHECK(pool->ledger().idle() == 2);
  CHECK(prefixes.blocks_needed(ids(13)) == 4);  // idle blocks are among those that are available
  CHECK(prefixes.blocks_needed(ids(8)) == 2);
  CHECK(prefixes.stats().queries == 1);
}

TEST_CASE("prefix cache: in a full pool a sequence goes on in a kept block that nobody else holds") {
  const auto pool = make_pool(2);
  PrefixCache prefixes(pool);
  { const Paged a = run(prefixes, pool, ids(8)); }
  Paged cache(pool);
  CHECK(prefixes.take(ids(8), cache) == 7);
  CHECK(pool->ledger().available() == 0);
  append(cache, Ids{77});
  Ids expected = ids(7);
  expected.push_back(77);
  CHECK(holds(cache, expected));
  CHECK(prefixes.match(ids(9)) == 4);  // it is no longer what it was published as
}

TEST_CASE("prefix cache: running sequences publish as they grow, and publishing twice changes nothing") {
  const auto pool = make_pool();
  PrefixCache prefixes(pool);
  Paged cache(pool);
  Ids known;
  for (TokenId id = 0; id < 13; ++id) {
    known.push_back(id);
    append(cache, Ids{id});
    prefixes.publish(known, cache);
    prefixes.publish(known, cache);
    CHECK(prefixes.match(ids(40, 0)) == static_cast<Index>(known.size()) / 4 * 4);
  }
  // What is known of the tokens counts, not how much is said of them.
  prefixes.publish(ids(40, 0), cache);
  CHECK(prefixes.match(ids(40, 0)) == 12);
  CHECK(pool->ledger().held() == 4);
}

TEST_CASE("prefix cache: the same blocks computed twice are known once, and chains mend when a beginning is evicted") {
  const auto pool = make_pool(8);
  PrefixCache prefixes(pool);
  std::optional<Paged> a(filled(pool, ids(8)));
  Paged b = filled(pool, ids(12));
  prefixes.publish(ids(8), *a);
  prefixes.publish(ids(12), b);  // its third block behind a's two
  CHECK(prefixes.match(ids(13)) == 12);
  a.reset();
  CHECK(prefixes.match(ids(13)) == 12);
  CHECK(pool->ledger().idle() == 2);
  // a's blocks are evicted: b's third one cannot be reached, and must not be found under another beginning.
  Paged big(pool);
  append(big, ids(20, 100));
  CHECK(pool->ledger().idle() == 0);
  CHECK(prefixes.match(ids(13)) == 0);
  prefixes.publish(ids(12), b);
  CHECK(prefixes.match(ids(13)) == 8);
  CHECK(holds(b, ids(12)));
}

TEST_CASE("prefix cache: it can forget all, and gives back what it kept at its end") {
  const auto pool = make_pool();
  std::optional<PrefixCache> prefixes(pool);
  const Paged a = run(*prefixes, pool, ids(9));
  { const Paged b = run(*prefixes, pool, ids(9, 50)); }
  CHECK(pool->ledger().idle() == 2);
  prefixes->clear();
  CHECK(pool->ledger().idle() == 0);
  CHECK(pool->ledger().free() == 13);
  CHECK(prefixes->match(ids(9)) == 0);
  prefixes->publish(ids(9), a);
  CHECK(prefixes->match(ids(9)) == 8);
  { const Paged b = run(*prefixes, pool, ids(9, 50)); }
  prefixes.reset();
  CHECK(pool->ledger().free() == 13);
  CHECK(holds(a, ids(9)));
  static_assert(!std::is_copy_constructible_v<PrefixCache>);
}

TEST_CASE("prefix cache: another pool's sequences and sequences that hold something are refused") {
  const auto pool = make_pool();
  PrefixCache prefixes(pool);
  Paged foreign(make_pool());
  CHECK_THROWS_AS(prefixes.take(ids(5), foreign), std::invalid_argument);
  CHECK_THROWS_AS(prefixes.publish(ids(5), foreign), std::invalid_argument);
  Paged begun = run(prefixes, pool, ids(9));
  CHECK_THROWS_AS(prefixes.take(ids(9), begun), std::invalid_argument);
  CHECK(holds(begun, ids(9)));
  CHECK_THROWS_AS(PrefixCache(std::shared_ptr<Pool>()), std::invalid_argument);
  // A sequence shorter than the hit takes what it has room for.
  Paged brief(pool, 6);
  CHECK(prefixes.take(ids(9), brief) == 6);
  CHECK(holds(brief, ids(6)));

  // Two prefix caches of one pool keep each its own.
  PrefixCache more(pool);
  more.publish(ids(9), begun);
  CHECK(more.match(ids(9)) == 0);
  const Paged other = filled(pool, ids(9));
  more.publish(ids(9), other);
  CHECK(more.match(ids(9)) == 8);
}
