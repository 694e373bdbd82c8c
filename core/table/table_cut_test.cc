#include <atomic>
#include <map>
#include <random>
#include <thread>

#include "table/batch_plan.h"
#include "table/sparse_table.h"
#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectEqual;
using testing::RequireOk;
using testing::Test;

const KeyHash kHash;

std::shared_ptr<SparseTable> MakeTable(bool track_dirty = false, std::uint32_t dim = 1) {
  SparseSpec spec;
  spec.name = "ads";
  spec.dim = dim;
  spec.optimizer.learning_rate = 1.0;
  spec.eviction.untouched_steps = 1000;
  spec.track_dirty = track_dirty;
  return RequireOk(SparseTable::Create(spec, {}, kHash));
}

void AddOne(SparseTable& table, const std::vector<Key>& keys, std::uint64_t step = 0) {
  const std::vector<float> minus(keys.size() * table.dim(), -1.0F);
  RequireOk(table.Push(keys, minus, step).status());
}

std::map<Key, float> ReadAll(TableCut& cut, std::size_t max_rows = 10) {
  std::map<Key, float> rows;
  RowBatch batch;
  while (cut.Next(max_rows, batch)) {
    Expect(batch.keys.size() <= max_rows, "more rows than requested");
    for (std::size_t i = 0; i < batch.keys.size(); ++i) {
      Expect(rows.emplace(batch.keys[i], batch.values[i]).second, "a key twice");
    }
  }
  return rows;
}

std::map<Key, float> ReadAndCommit(TableCut cut) {
  const auto rows = ReadAll(cut);
  cut.Commit();
  return rows;
}

std::vector<Key> Range(Key begin, Key end) {
  std::vector<Key> keys;
  for (Key key = begin; key < end; ++key) keys.push_back(key);
  return keys;
}

const Test kFrozen("a cut shows rows as they were, whatever happens later", [] {
  auto table = MakeTable();
  AddOne(*table, Range(0, 1000));
  AddOne(*table, Range(0, 500));
  TableCut cut = table->OpenCut();
  AddOne(*table, Range(250, 2000), 5000);
  table->Erase(Range(100, 300));
  AddOne(*table, Range(150, 200), 5000);
  table->Shrink(2000);
  RowBatch import{.keys = Range(400, 450),
                  .values = std::vector<float>(50, 77.0F),
                  .state = {},
                  .counters = {}};
  RequireOk(table->Import(import));
  table->Clear();
  AddOne(*table, Range(0, 100));
  const auto rows = ReadAll(cut);
  ExpectEqual(rows.size(), 1000U);
  for (const auto& [key, value] : rows) {
    if (!ExpectEqual(value, key < 500 ? 2.0F : 1.0F)) break;
  }
});

const Test kSeveral("several cuts may be open, each with its own moment", [] {
  auto table = MakeTable();
  std::vector<TableCut> cuts;
  for (int i = 0; i < 4; ++i) {
    AddOne(*table, Range(0, 100 * (i + 1)));
    cuts.push_back(table->OpenCut());
    table->Erase(std::vector<Key>{static_cast<Key>(i)});
  }
  AddOne(*table, Range(0, 1000));
  RowBatch some;
  Expect(cuts[1].Next(20, some), "no rows");
  cuts.erase(cuts.begin() + 1);
  const std::uint64_t held = table->Stats().memory_bytes;
  ExpectEqual(ReadAll(cuts[0])[50], 1.0F);
  const auto third = ReadAll(cuts[1], 1000);
  ExpectEqual(third.size(), 300U);
  ExpectEqual(third.at(50), 3.0F);
  ExpectEqual(third.at(0), 2.0F);
  ExpectEqual(ReadAll(cuts[2])[350], 1.0F);
  Expect(table->Stats().memory_bytes < held, "rows kept for cuts are not freed");
});

const Test kOutlives("a cut keeps its table alive, and may be dropped halfway", [] {
  auto table = MakeTable();
  AddOne(*table, Range(0, 100));
  {
    TableCut dropped = table->OpenCut();
    RowBatch batch;
    Expect(dropped.Next(10, batch), "no rows");
    AddOne(*table, Range(0, 100));
  }
  TableCut cut = table->OpenCut();
  TableCut moved = std::move(cut);
  table.reset();
  ExpectEqual(ReadAll(moved).size(), 100U);
});

const Test kDirty("after a clearing cut, later ones have only what changed since", [] {
  auto table = MakeTable(true);
  AddOne(*table, Range(0, 100));
  TableCut first = table->OpenCut(true, true);
  AddOne(*table, Range(50, 60));    // changed after the cut: dirty for the next
  AddOne(*table, Range(200, 210));  // created after it
  const auto all = ReadAll(first);
  first.Commit();
  ExpectEqual(all.size(), 100U);
  ExpectEqual(all.at(55), 1.0F);
  std::vector<float> out(10);
  RequireOk(table->Pull(Range(0, 10), PullMode::kTrain, 0, out));  // reading is no change
  TableCut second = table->OpenCut(true, true);
  AddOne(*table, {0});
  const auto changed = ReadAll(second);
  second.Commit();
  ExpectEqual(changed.size(), 20U);
  Expect(changed.contains(50) && changed.contains(205) && !changed.contains(0), "wrong rows");
  TableCut third = table->OpenCut(true, false);
  ExpectEqual(ReadAll(third), std::map<Key, float>({{0, 2.0F}}));
  ExpectEqual(ReadAndCommit(table->OpenCut(true, true)).size(), 1U);
  TableCut fifth = table->OpenCut(true);
  ExpectEqual(ReadAll(fifth).size(), 0U);
  TableCut whole = table->OpenCut();
  ExpectEqual(ReadAll(whole).size(), 110U);
  auto untracked = MakeTable(false);
  AddOne(*untracked, Range(0, 10));
  TableCut any = untracked->OpenCut(true, true);
  ExpectEqual(ReadAll(any).size(), 10U);
});

const Test kClearedForOthers("clearing takes no row from open cuts", [] {
  auto table = MakeTable(true);
  AddOne(*table, Range(0, 1000));
  TableCut before = table->OpenCut(true);
  TableCut both = table->OpenCut(true, true);
  RowBatch some;
  Expect(before.Next(100, some), "no rows");
  ExpectEqual(ReadAndCommit(table->OpenCut(false, true)).size(), 1000U);
  AddOne(*table, Range(0, 10));  // a write to a row whose bit has gone is saved for them
  table->Erase(Range(500, 510));
  TableCut after = table->OpenCut(true);
  ExpectEqual(ReadAll(before).size() + some.keys.size(), 1000U);
  const auto rows = ReadAll(both);
  ExpectEqual(rows.size(), 1000U);
  ExpectEqual(rows.at(5), 1.0F);
  both.Commit();
  ExpectEqual(ReadAll(after).size(), 10U);
  ExpectEqual(ReadAndCommit(table->OpenCut(true, true)).size(), 10U);
  ExpectEqual(ReadAndCommit(table->OpenCut(true, true)).size(), 0U);
});

const Test kGivenUp("a clearing cut abandoned before its end leaves all its rows dirty", [] {
  auto table = MakeTable(true);
  AddOne(*table, Range(0, 1000));
  RowBatch batch;
  {
    TableCut half = table->OpenCut(true, true);
    Expect(half.Next(600, batch), "no rows");
    half.Commit();  // not at its end: no effect
  }
  {
    TableCut uncommitted = table->OpenCut(true, true);
    ExpectEqual(ReadAll(uncommitted).size(), 1000U);
  }
  ExpectEqual(ReadAndCommit(table->OpenCut(true, true)).size(), 1000U);
  ExpectEqual(ReadAndCommit(table->OpenCut(true, true)).size(), 0U);
});

const Test kChangedAfterHandout("a row changed after it was returned is dirty for the next", [] {
  auto table = MakeTable(true);
  AddOne(*table, Range(0, 1000));
  TableCut cut = table->OpenCut(true, true);
  ExpectEqual(ReadAll(cut).size(), 1000U);
  AddOne(*table, Range(0, 20));
  table->Erase(Range(900, 1000));
  AddOne(*table, Range(2000, 2100));  // in the slots of the erased
  cut.Commit();
  const auto next = ReadAndCommit(table->OpenCut(true, true));
  for (Key key : Range(0, 20)) Expect(next.contains(key), "a changed row is lost");
  for (Key key : Range(2000, 2100)) Expect(next.contains(key), "a new row is lost");
  Expect(next.size() <= 220, "more rows than changed or moved");
});

// A second key for every key, in another shard.
Key Partner(Key key) {
  Key partner = key + 1000000;
  while (ShardOf(kHash(partner)) == ShardOf(kHash(key))) partner += 1000000;
  return partner;
}

const Test kNoSplit("no cut splits a push while threads push, erase and shrink", [] {
  auto table = MakeTable();
  std::atomic<bool> stop = false;
  constexpr Key kPairs = 500;
  std::vector<std::jthread> threads;
  for (std::uint64_t writer = 0; writer < 2; ++writer) {
    threads.emplace_back([&, writer] {
      std::mt19937_64 random(writer);
      while (!stop) {
        std::vector<Key> keys;
        for (int i = 0; i < 20; ++i) {
          const Key key = random() % kPairs;
          keys.push_back(key);
          keys.push_back(Partner(key));
        }
        AddOne(*table, keys, 100);
      }
    });
  }
  threads.emplace_back([&] {
    std::mt19937_64 random(9);
    while (!stop) {
      // Pairs beyond those pushed come and go as whole pairs.
      std::vector<Key> keys;
      for (int i = 0; i < 20; ++i) keys.push_back(kPairs + random() % 100);
      const std::size_t half = keys.size();
      for (std::size_t i = 0; i < half; ++i) keys.push_back(Partner(keys[i]));
      AddOne(*table, keys, 100);
      table->Erase(keys);
      table->Shrink(100);
    }
  });
  for (int round = 0; round < 40; ++round) {
    TableCut cut = table->OpenCut();
    const auto rows = ReadAll(cut, 64);
    for (const auto& [key, value] : rows) {
      if (key >= 1000000) continue;
      const auto other = rows.find(Partner(key));
      if (!Expect(other != rows.end() && other->second == value, "a push was split")) break;
    }
  }
  stop = true;
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
