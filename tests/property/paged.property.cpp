// SPDX-License-Identifier: Apache-2.0
// Random appends, forks, rollbacks, torn passes, prefix hits, evictions and exhaustion of many sequences over one pool, against
// lists of tokens and blocks counted the slow way.
#include "property/cases.hpp"
#include "support/token_rows.hpp"

#include <tinyllm/cache/paged_kv_cache.hpp>
#include <tinyllm/cache/prefix_cache.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

using namespace tinyllm;
using test_support::append_layer;
using test_support::holds;

namespace {

using Ids = std::vector<TokenId>;
using Cache = PagedKVCache<float>;

// Few ids and short blocks, so that prefixes meet; hashes that often collide, so that only tokens can tell.
struct WeakHash {
  std::uint64_t operator()(std::uint64_t parent, std::span<const TokenId> tokens) const {
    return BlockHash()(parent, tokens) % 3;
  }
};

// A sequence beside the tokens that it should hold, and its blocks as anyone would count them: how many hold each.
struct Sequence {
  Cache cache;
  Ids tokens;
  std::vector<std::shared_ptr<int>> blocks;
};

class Bench {
 public:
  explicit Bench(unsigned seed) : random_(seed) {
    block_size_ = 1 + pick(4);
    pool_ = std::make_shared<BlockPool<float>>(BlockPoolDims{
        .n_layers = 1 + pick(2), .n_kv_heads = 1, .d_head = 1, .n_blocks = 4 + pick(30), .block_size = block_size_});
    prefixes_.emplace(pool_);
  }

  void step() {
    const Index choice = pick(100);
    if (sequences_.empty() || choice < 8) {
      begin();
    } else if (choice < 50) {
      append(any(), 1 + pick(7));
    } else if (choice < 58) {
      torn(any());
    } else if (choice < 68) {
      fork(any());
    } else if (choice < 78) {
      truncate(any());
    } else if (choice < 86) {
      end(static_cast<std::size_t>(pick(static_cast<Index>(sequences_.size()))));
    } else if (choice < 97) {
      Sequence& s = any();
      prefixes_->publish(s.tokens, s.cache, static_cast<PrefixSalt>(pick(2)));
    } else if (choice < 98) {
      Sequence& s = any();
      Cache moved = std::move(s.cache);
      s.cache = std::move(moved);
    } else if (choice < 99) {
      check_refused(any());
    } else if (pick(10) == 0) {
      prefixes_->clear();
    }
    check_counts();
  }

  void check_all() const {
    for (const Sequence& s : sequences_) CHECK(holds(s.cache, s.tokens));
  }

  // Freed in random order, the pool is whole again.
  void finish() {
    check_all();
    std::shuffle(sequences_.begin(), sequences_.end(), random_);
    while (!sequences_.empty()) {
      sequences_.pop_back();
      check_counts();
    }
    CHECK(ledger().held() == 0);
    CHECK(ledger().available() == ledger().size());
    if (pick(2) == 0) {
      prefixes_->clear();
    } else {
      prefixes_.reset();
    }
    CHECK(ledger().free() == ledger().size());
  }

  std::size_t exhausted() const { return exhausted_; }
  std::size_t evictions() const { return ledger().evictions(); }
  std::size_t hits() const { return prefixes_ ? prefixes_->stats().hits : 0; }

 private:
  Index pick(Index below) { return static_cast<Index>(random_() % static_cast<unsigned>(below)); }
  Sequence& any() { return sequences_[static_cast<std::size_t>(pick(static_cast<Index>(sequences_.size())))]; }
  const BlockLedger& ledger() const { return pool_->ledger(); }
  Index blocks_for(Index n) const { return (n + block_size_ - 1) / block_size_; }

  Ids some_ids(Index n) {
    Ids out(static_cast<std::size_t>(n));
    for (TokenId& id : out) id = static_cast<TokenId>(pick(2));
    return out;
  }

  // Blocks that sequences hold, and how many of them each.
  std::map<const int*, Index> counted() const {
    std::map<const int*, Index> out;
    for (const Sequence& s : sequences_) {
      for (const auto& block : s.blocks) ++out[block.get()];
    }
    return out;
  }

  void check_counts() const {
    const auto count = counted();
    const auto shared = std::count_if(count.begin(), count.end(), [](const auto& block) { return block.second > 1; });
    const bool right = ledger().held() == static_cast<Index>(count.size()) && ledger().shared() == shared &&
                       ledger().free() + ledger().idle() + ledger().held() == ledger().size();
    CHECK(right);
  }

  void begin() {
    Sequence s{Cache(pool_), {}, {}};
    const Ids prompt = some_ids(pick(20));
    const auto salt = static_cast<PrefixSalt>(pick(2));
    const Index known = prefixes_->match(prompt, salt);
    const Index needed = prefixes_->blocks_needed(prompt, salt);
    const Index available = ledger().available();
    const Index held = prefixes_->take(prompt, s.cache, salt);
    CHECK(held == known);
    CHECK(held <= std::max<Index>(static_cast<Index>(prompt.size()) - 1, 0));
    s.tokens.assign(prompt.begin(), prompt.begin() + held);
    CHECK(holds(s.cache, s.tokens));
    for (const BlockId id : s.cache.blocks()) s.blocks.push_back(counter_of(id));
    sequences_.push_back(std::move(s));
    // Whether the rest would fit was known before.
    Sequence& taken = sequences_.back();
    const Index rest = static_cast<Index>(prompt.size()) - held;
    if (pick(2) == 0 || rest == 0 || held + rest > taken.cache.capacity()) return;
    const bool fits = make_room(taken, held, rest);
    CHECK(fits == (needed <= available));
    CHECK(fits == taken.cache.reserve(rest));
    taken.cache.truncate(held);
    taken.blocks.resize(static_cast<std::size_t>(blocks_for(held)));
  }

  // The counter of a block that some sequence has, or a new one: an idle block has none.
  std::shared_ptr<int> counter_of(BlockId id) const {
    for (const Sequence& s : sequences_) {
      for (std::size_t i = 0; i < s.blocks.size(); ++i) {
        if (s.cache.blocks()[i] == id) return s.blocks[i];
      }
    }
    return std::make_shared<int>(0);
  }

  // Blocks that a sequence needs to grow by n positions from position `from` on: new ones, and copies of those that it shares.
  Index needed(const Sequence& s, Index from, Index n) const {
    const Index end = blocks_for(from + n);
    const Index have = static_cast<Index>(s.blocks.size());
    const auto count = counted();
    Index needed = std::max<Index>(end - have, 0);
    for (Index i = from / block_size_; i < std::min(end, have); ++i) {
      needed += count.at(s.blocks[static_cast<std::size_t>(i)].get()) > 1 ? 1 : 0;
    }
    return needed;
  }
  Index obtainable() const { return ledger().size() - static_cast<Index>(counted().size()); }

  // Whether a sequence may grow by n positions from position `from` on, and if so its blocks then.
  bool make_room(Sequence& s, Index from, Index n) {
    if (needed(s, from, n) > obtainable()) return false;
    const Index end = blocks_for(from + n);
    const Index have = static_cast<Index>(s.blocks.size());
    const auto count = counted();
    const auto shared = [&](Index i) { return count.at(s.blocks[static_cast<std::size_t>(i)].get()) > 1; };
    for (Index i = from / block_size_; i < std::min(end, have); ++i) {
      if (shared(i)) s.blocks[static_cast<std::size_t>(i)] = std::make_shared<int>(0);
    }
    while (static_cast<Index>(s.blocks.size()) < end) s.blocks.push_back(std::make_shared<int>(0));
    return true;
  }

  void append(Sequence& s, Index n) {
    const Ids more = some_ids(n);
    const Index length = static_cast<Index>(s.tokens.size());
    if (length + n > s.cache.capacity()) {
      CHECK_THROWS_AS(append_layer(s.cache, 0, more), CacheFull);
    } else if (make_room(s, length, n)) {
      if (pick(3) == 0) CHECK(s.cache.reserve(n));
      for (Index layer = 0; layer < pool_->dims().n_layers; ++layer) append_layer(s.cache, layer, more);
      s.tokens.insert(s.tokens.end(), more.begin(), more.end());
    } else {
      ++exhausted_;
      CHECK_FALSE(s.cache.reserve(n));
      Index most = n;
      while (most > 0 && needed(s, length, most) > obtainable()) --most;
      try {
        append_layer(s.cache, 0, more);
        FAIL("there were too few blocks");
      } catch (const OutOfBlocks& error) {
        CHECK(error.requested() == n);
        CHECK(error.seq_len() == length);
        CHECK(error.capacity() == length + most);
        CHECK(error.blocks().needed == needed(s, length, n));
        CHECK(error.blocks().available == obtainable());
      }
    }
    CHECK(holds(s.cache, s.tokens));
  }

  // A pass that dies after its first layer leaves blocks taken until it is mended.
  void torn(Sequence& s) {
    const Index n = 1 + pick(5);
    const Index length = static_cast<Index>(s.tokens.size());
    if (pool_->dims().n_layers < 2 || length + n > s.cache.capacity() || !make_room(s, length, n)) return;
    append_layer(s.cache, pick(2), some_ids(n));
    if (pick(2) == 0) {
      const Index kept = pick(length + 1);
      Sequence child{s.cache.fork(kept), Ids(s.tokens.begin(), s.tokens.begin() + kept), {}};
      child.blocks.assign(s.blocks.begin(), s.blocks.begin() + blocks_for(kept));
      s.cache.truncate(length);
      s.blocks.resize(static_cast<std::size_t>(blocks_for(length)));
      CHECK(holds(child.cache, child.tokens));
      CHECK(holds(s.cache, s.tokens));
      sequences_.push_back(std::move(child));
      return;
    }
    s.cache.truncate(length);
    s.blocks.resize(static_cast<std::size_t>(blocks_for(length)));
    CHECK(holds(s.cache, s.tokens));
  }

  void fork(Sequence& s) {
    if (sequences_.size() > 12) return;
    const Index n = pick(2) == 0 ? static_cast<Index>(s.tokens.size()) : pick(static_cast<Index>(s.tokens.size()) + 1);
    Sequence child{s.cache.fork(n), Ids(s.tokens.begin(), s.tokens.begin() + n), {}};
    child.blocks.assign(s.blocks.begin(), s.blocks.begin() + blocks_for(n));
    CHECK(holds(child.cache, child.tokens));
    sequences_.push_back(std::move(child));
  }

  void truncate(Sequence& s) {
    const Index n = pick(static_cast<Index>(s.tokens.size()) + 1);
    s.cache.truncate(n);
    s.tokens.resize(static_cast<std::size_t>(n));
    s.blocks.resize(static_cast<std::size_t>(blocks_for(n)));
    CHECK(holds(s.cache, s.tokens));
  }

  void end(std::size_t i) {
    std::swap(sequences_[i], sequences_.back());
    sequences_.pop_back();
    if (!sequences_.empty()) {
      const Sequence& s = any();
      CHECK(holds(s.cache, s.tokens));
    }
  }

  void check_refused(Sequence& s) {
    CHECK_THROWS_AS(s.cache.truncate(static_cast<Index>(s.tokens.size()) + 1), std::out_of_range);
    CHECK_THROWS_AS(s.cache.fork(-1), std::out_of_range);
    CHECK(holds(s.cache, s.tokens));
  }

  std::mt19937 random_;
  Index block_size_ = 1;
  std::shared_ptr<BlockPool<float>> pool_;
  std::optional<BasicPrefixCache<WeakHash>> prefixes_;
  std::vector<Sequence> sequences_;
  std::size_t exhausted_ = 0;
};

}  // namespace

TEST_CASE("property: sequences over one pool against lists of tokens, and the pool is whole at the end") {
  const std::size_t wanted = property::cases(20'000);
  std::size_t done = 0;
  std::size_t exhausted = 0;
  std::size_t evictions = 0;
  std::size_t hits = 0;
  unsigned seed = 0;
  for (; done < wanted; ++seed) {
    CAPTURE(seed);
    Bench bench(seed);
    for (int i = 0; i < 250; ++i, ++done) {
      bench.step();
      if (i % 50 == 0) bench.check_all();
    }
    exhausted += bench.exhausted();
    evictions += bench.evictions();
    hits += bench.hits();
    bench.finish();
  }
  CHECK(exhausted > wanted / 100);
  CHECK(evictions > wanted / 100);
  CHECK(hits > wanted / 100);
  MESSAGE(done << " operations, seeds 0 to " << seed - 1 << "; " << exhausted << " times out of blocks, " << evictions
               << " evictions, " << hits << " prefix hits");
}
