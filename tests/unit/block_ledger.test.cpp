// SPDX-License-Identifier: Apache-2.0
#include <tinyllm/cache/block_ledger.hpp>
#include <tinyllm/cache/block_table.hpp>

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

using namespace tinyllm;

TEST_CASE("block ledger: without a better place the lowest free block is taken, and every block is accounted for") {
  BlockLedger ledger(4);
  CHECK(ledger.size() == 4);
  CHECK(ledger.free() == 4);
  for (BlockId i = 0; i < 4; ++i) CHECK(ledger.take() == i);
  CHECK(ledger.free() == 0);
  CHECK(ledger.held() == 4);
  CHECK(ledger.available() == 0);
  CHECK_THROWS(ledger.take());
  ledger.release(2);
  ledger.release(0);
  ledger.release(1);
  CHECK(ledger.free() == 3);
  CHECK(ledger.take() == 0);
  CHECK(ledger.take() == 1);
  CHECK(ledger.take() == 2);
  CHECK_THROWS_AS(BlockLedger(0), std::invalid_argument);
  CHECK_THROWS_AS(BlockLedger(-1), std::invalid_argument);
}

TEST_CASE("block ledger: the block behind is taken if it is free, else the beginning of the widest free stretch") {
  BlockLedger ledger(150);
  CHECK(ledger.take() == 0);
  CHECK(ledger.take() == 64);
  CHECK(ledger.take(0) == 1);
  CHECK(ledger.take(64) == 65);
  CHECK(ledger.take() == 16);
  CHECK(ledger.take(1) == 2);
  CHECK(ledger.take() == 32);
  CHECK(ledger.take(16) == 17);
  CHECK(ledger.take(149) == 48);  // nothing is behind the last one
  for (const BlockId id : {80, 96, 112}) CHECK(ledger.take() == id);
  CHECK(ledger.take() == 128);
  CHECK(ledger.take() == 4);  // no sixteen are free together
  for (BlockId last = 4; last < 15; ++last) CHECK(ledger.take(last) == last + 1);
  CHECK(ledger.take(15) == 20);

  // Side by side, ten sequences of a hundred blocks are a few runs each.
  const auto shared = std::make_shared<BlockLedger>(1200);
  std::vector<BlockTable> tables;
  for (int i = 0; i < 10; ++i) tables.emplace_back(shared, 100);
  for (Index n = 1; n <= 100; ++n) {
    for (BlockTable& table : tables) REQUIRE(table.extend(n - 1, n, [](Index, BlockId, BlockId) {}));
  }
  for (const BlockTable& table : tables) {
    int runs = 1;
    for (Index i = 1; i < 100; ++i) runs += table[i] == table[i - 1] + 1 ? 0 : 1;
    CHECK(runs <= 4);
  }
  CHECK(shared->free() == 200);
}

TEST_CASE("block ledger: blocks that are evicted together are taken together, in order") {
  const auto ledger = std::make_shared<BlockLedger>(40);
  {
    BlockTable table(ledger, 40);
    REQUIRE(table.extend(0, 40, [](Index, BlockId, BlockId) {}));
    for (const BlockId id : table.blocks()) ledger->keep(id);
  }
  CHECK(ledger->idle() == 40);
  BlockTable table(ledger, 40);
  REQUIRE(table.extend(0, 10, [](Index, BlockId, BlockId) {}));
  CHECK(ledger->evictions() == 10);
  CHECK(ledger->free() == 0);
  int runs = 1;
  for (Index i = 1; i < 10; ++i) runs += table[i] == table[i - 1] + 1 ? 0 : 1;
  CHECK(runs <= 3);
}

TEST_CASE("block ledger: a block is free when its last reference has gone") {
  BlockLedger ledger(2);
  const BlockId id = ledger.take();
  CHECK(ledger.references(id) == 1);
  CHECK(ledger.writable(id));
  CHECK(ledger.shared() == 0);
  ledger.share(id);
  ledger.share(id);
  CHECK(ledger.references(id) == 3);
  CHECK_FALSE(ledger.writable(id));
  CHECK(ledger.shared() == 1);
  CHECK(ledger.held() == 1);
  ledger.release(id);
  CHECK(ledger.shared() == 1);
  ledger.release(id);
  CHECK(ledger.shared() == 0);
  CHECK(ledger.writable(id));
  CHECK(ledger.free() == 1);
  ledger.release(id);
  CHECK(ledger.free() == 2);
  CHECK_THROWS(ledger.release(id));
  CHECK_THROWS(ledger.share(id));
}

TEST_CASE("block ledger: kept blocks outlive their references and are evicted when nothing is free, the oldest first") {
  BlockLedger ledger(4);
  std::vector<BlockLedger::Kept> kept;
  for (int i = 0; i < 4; ++i) kept.push_back(ledger.keep(ledger.take()));
  CHECK(kept[0] != 0);
  CHECK(kept[0] != kept[1]);
  CHECK(ledger.kept(1) == kept[1]);
  CHECK_FALSE(ledger.writable(1));
  for (const BlockId id : {2, 0, 3, 1}) ledger.release(id);
  CHECK(ledger.idle() == 4);
  CHECK(ledger.free() == 0);
  CHECK(ledger.held() == 0);
  CHECK(ledger.available() == 4);

  // Held again, a block is not idle, and idle from anew later.
  ledger.share(2);
  CHECK(ledger.idle() == 3);
  ledger.release(2);
  CHECK(ledger.take() == 0);
  CHECK(ledger.kept(0) == 0);
  CHECK(ledger.evictions() == 1);
  ledger.drop(1);
  CHECK(ledger.free() == 1);
  CHECK(ledger.take() == 1);  // free before idle
  CHECK(ledger.take() == 3);
  CHECK(ledger.take() == 2);
  CHECK(ledger.evictions() == 3);
  CHECK(ledger.available() == 0);

  // Dropped while it is held: its holder may write.
  ledger.keep(2);
  ledger.drop(2);
  CHECK(ledger.writable(2));
  CHECK(ledger.keep(2) > kept[3]);  // a keeping's name never comes again
  CHECK_THROWS(ledger.keep(2));
  CHECK_THROWS(ledger.drop(3));
}

TEST_CASE("out of blocks: the message has the numbers, and it is a full cache") {
  const OutOfBlocks error(20, 5, 16, {.needed = 2, .available = 1, .size = 8});
  const CacheFull& full = error;
  CHECK(full.requested() == 20);
  CHECK(full.seq_len() == 5);
  CHECK(full.capacity() == 16);
  CHECK(error.blocks().needed == 2);
  CHECK(std::string(full.what()) == "cache is full: 20 more positions behind 5 need 2 more blocks, 1 of 8 can be had");
}

namespace {

struct Copies {
  std::vector<Index> of;
  auto operator()() {
    return [this](Index i, BlockId, BlockId) { of.push_back(i); };
  }
};

}  // namespace

TEST_CASE("block table: it grows by free blocks, copies shared ones, and gives all back at its end") {
  const auto ledger = std::make_shared<BlockLedger>(6);
  Copies copies;
  {
    BlockTable a(ledger, 6);
    CHECK(a.missing(0, 3) == 3);
    CHECK(a.extend(0, 3, copies()));
    CHECK(std::vector<BlockId>(a.blocks().begin(), a.blocks().end()) == std::vector<BlockId>{0, 1, 2});
    BlockTable b(ledger, 6);
    b.share(a.blocks());
    CHECK(ledger->shared() == 3);
    CHECK(b.missing(2, 4) == 2);
    CHECK(b.extend(2, 4, copies()));
    CHECK(copies.of == std::vector<Index>{2});
    CHECK(b[1] == 1);
    CHECK(b[2] == 3);
    CHECK(b[3] == 4);
    CHECK(a[2] == 2);
    CHECK(ledger->shared() == 2);

    // One block is free: two are refused, and nothing has changed.
    CHECK_FALSE(b.extend(1, 5, copies()));
    CHECK(b.size() == 4);
    CHECK(b[1] == 1);
    CHECK(copies.of.size() == 1);
    CHECK(ledger->free() == 1);

    a.shrink(1);
    CHECK(ledger->free() == 2);  // b holds block 1 still
    BlockTable moved = std::move(b);
    a = std::move(moved);
    CHECK(a.size() == 4);
    CHECK(ledger->held() == 4);
    CHECK(ledger->shared() == 0);
  }
  CHECK(ledger->free() == 6);
  static_assert(!std::is_copy_constructible_v<BlockTable> && std::is_nothrow_move_assignable_v<BlockTable>);
}

TEST_CASE("block table: a block that is only kept beside us is copied where there is room, else taken from its keeper") {
  for (const Index size : {2, 1}) {
    const auto ledger = std::make_shared<BlockLedger>(size);
    BlockTable table(ledger, 2);
    CHECK(table.extend(0, 1, Copies()()));
    ledger->keep(table[0]);
    Copies copies;
    CHECK(table.extend(0, 1, copies()));
    CHECK(ledger->writable(table[0]));
    CHECK(copies.of.size() == static_cast<std::size_t>(size - 1));
    CHECK(ledger->idle() == size - 1);
    CHECK(table[0] == size - 1);
  }
}
