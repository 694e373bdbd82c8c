// Cuts that report removed rows: a chain of them rebuilds the table.
#include <atomic>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "table/sparse_table.h"
#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectEqual;
using testing::RequireOk;
using testing::Test;

using Rows = std::map<Key, float>;

std::shared_ptr<SparseTable> MakeTable(bool track_dirty = true) {
  SparseSpec spec;
  spec.name = "ads";
  spec.dim = 1;
  spec.optimizer.learning_rate = 1.0;
  spec.eviction.untouched_steps = 1000;
  spec.track_dirty = track_dirty;
  return RequireOk(SparseTable::Create(spec));
}

void AddOne(SparseTable& table, const std::vector<Key>& keys, std::uint64_t step = 0) {
  const std::vector<float> minus(keys.size(), -1.0F);
  RequireOk(table.Push(keys, minus, step).status());
}

std::vector<Key> Range(Key begin, Key end) {
  std::vector<Key> keys;
  for (Key key = begin; key < end; ++key) keys.push_back(key);
  return keys;
}

Rows ReadAll(TableCut& cut) {
  Rows rows;
  RowBatch batch;
  while (cut.Next(64, batch)) {
    for (std::size_t i = 0; i < batch.keys.size(); ++i) rows[batch.keys[i]] = batch.values[i];
  }
  return rows;
}

std::set<Key> RemovedOf(TableCut& cut) {
  const auto keys = cut.Removed();
  std::set<Key> unique(keys.begin(), keys.end());
  ExpectEqual(unique.size(), keys.size());
  return unique;
}

// A clearing cut, read to its end.
std::set<Key> ClearAll(SparseTable& table) {
  TableCut cut = table.OpenCut(true, true);
  ReadAll(cut);
  cut.Commit();
  return RemovedOf(cut);
}

std::set<Key> SetOf(const std::vector<Key>& keys) { return {keys.begin(), keys.end()}; }

const Test kWays("rows removed in any way are reported once, those that came back are not", [] {
  auto table = MakeTable();
  AddOne(*table, Range(0, 200), 1);
  table->Erase(Range(0, 10));
  ExpectEqual(ClearAll(*table).size(), 0U);  // no baseline yet
  AddOne(*table, Range(100, 200), 5000);
  ExpectEqual(table->Shrink(3000), 90U);  // 10 to 99
  table->Erase(Range(100, 120));
  AddOne(*table, Range(110, 115), 5000);
  table->Erase(Range(500, 600));  // never there
  auto wanted = SetOf(Range(10, 120));
  for (const Key key : Range(110, 115)) wanted.erase(key);
  TableCut looks = table->OpenCut(true, false);
  Expect(RemovedOf(looks) == wanted, "wrong keys");
  Expect(RemovedOf(looks) == wanted, "different keys the second time");
  Expect(ClearAll(*table) == wanted, "wrong keys");
  ExpectEqual(ClearAll(*table).size(), 0U);
  table->Clear();
  wanted = SetOf(Range(110, 115));
  wanted.merge(SetOf(Range(120, 200)));
  Expect(ClearAll(*table) == wanted, "not all rows of a cleared table");
});

const Test kMoment("changes after the cut's moment do not affect it", [] {
  auto table = MakeTable();
  AddOne(*table, Range(0, 1000));
  ClearAll(*table);
  table->Erase(Range(0, 100));
  TableCut cut = table->OpenCut(true, true);
  AddOne(*table, Range(0, 50));   // back again
  table->Erase(Range(40, 60));    // some of them removed again; 50 to 59 were already
  table->Erase(Range(200, 220));  // later
  ReadAll(cut);
  Expect(RemovedOf(cut) == SetOf(Range(0, 100)), "wrong keys at the cut's moment");
  cut.Commit();
  Expect(RemovedOf(cut) == SetOf(Range(0, 100)), "wrong keys after the end");
  auto wanted = SetOf(Range(40, 50));
  wanted.merge(SetOf(Range(200, 220)));
  Expect(ClearAll(*table) == wanted, "wrong keys in the next cut");
});

const Test kGivenUp("an abandoned cut leaves its removed keys to the next", [] {
  auto table = MakeTable();
  AddOne(*table, Range(0, 1000));
  ClearAll(*table);
  table->Erase(Range(0, 100));
  AddOne(*table, Range(500, 600));
  {
    TableCut half = table->OpenCut(true, true);
    RowBatch some;
    Expect(half.Next(10, some), "no rows");
    Expect(RemovedOf(half) == SetOf(Range(0, 100)), "wrong keys");
    half.Commit();
  }
  TableCut other = table->OpenCut(true, false);
  const auto cleared = ClearAll(*table);
  Expect(cleared == SetOf(Range(0, 100)), "lost by an abandoned cut");
  // `other` had yet to read them, so they may be reported once more: never too few.
  Expect(RemovedOf(other) == cleared, "taken from an open cut");
  ReadAll(other);
  ClearAll(*table);
  ExpectEqual(ClearAll(*table).size(), 0U);
});

const Test kMemory("removed keys count as memory, which is freed; untracked ones take none", [] {
  auto table = MakeTable();
  AddOne(*table, Range(0, 20000));
  table->Erase(Range(0, 10000));
  ClearAll(*table);
  const auto before = table->Stats().memory_bytes;
  table->Erase(Range(10000, 20000));
  Expect(table->Stats().memory_bytes >= before + 10000 * sizeof(Key), "they are not counted");
  ClearAll(*table);
  Expect(table->Stats().memory_bytes <= before, "they are not freed");
  auto untracked = MakeTable(false);
  AddOne(*untracked, Range(0, 100));
  untracked->Erase(Range(0, 10));
  TableCut cut = untracked->OpenCut(true, true);
  ReadAll(cut);
  ExpectEqual(cut.Removed().size(), 0U);
});

// A table as reconstructed from its cuts.
void ApplyDelta(Rows& base, TableCut& cut, const Rows& changed) {
  for (const Key key : cut.Removed()) base.erase(key);
  for (const auto& [key, value] : changed) base[key] = value;
}

const Test kChain("a chain of cuts rebuilds the table at each moment", [] {
  std::mt19937_64 random(11);
  const auto some_keys = [&] {
    std::vector<Key> keys;
    for (int i = 0; i < 30; ++i) keys.push_back(random() % 400);
    return keys;
  };
  auto table = MakeTable();
  const auto change = [&] {
    for (std::uint64_t n = random() % 4; n > 0; --n) {
      if (random() % 2 == 0) AddOne(*table, some_keys(), random() % 3000);
      if (random() % 2 == 0) table->Erase(some_keys());
      if (random() % 20 == 0) table->Shrink(2500);
      if (random() % 100 == 0) table->Clear();
    }
  };
  Rows base;
  for (int round = 0; round < 1500; ++round) {
    change();
    TableCut full = table->OpenCut(false, false);
    TableCut delta = table->OpenCut(true, true);
    std::optional<TableCut> bystander;
    if (random() % 4 == 0) bystander.emplace(table->OpenCut(true, random() % 2 == 0));
    change();
    RowBatch batch;
    if (random() % 4 == 0) {  // abandoned
      delta.Next(random() % 100 + 1, batch);
      continue;
    }
    Rows changed = ReadAll(delta);
    change();
    ApplyDelta(base, delta, changed);
    delta.Commit();
    if (!Expect(base == ReadAll(full), "the chain differs from the table")) break;
  }
});

const Test kThreads("a chain of cuts misses nothing while threads push and remove", [] {
  auto table = MakeTable();
  std::atomic<bool> stop = false;
  std::vector<std::jthread> threads;
  for (std::uint64_t writer = 0; writer < 3; ++writer) {
    threads.emplace_back([&, writer] {
      std::mt19937_64 random(writer);
      while (!stop) {
        std::vector<Key> keys;
        for (int i = 0; i < 20; ++i) keys.push_back(random() % 300);
        AddOne(*table, keys, random() % 3000);
        if (writer == 0) table->Erase(keys);
        if (writer == 1 && random() % 50 == 0) table->Shrink(2500);
      }
    });
  }
  Rows base;
  for (int round = 0; round < 60; ++round) {
    TableCut delta = table->OpenCut(true, true);
    const Rows changed = ReadAll(delta);
    ApplyDelta(base, delta, changed);
    delta.Commit();
  }
  stop = true;
  threads.clear();
  TableCut last = table->OpenCut(true, true);
  const Rows changed = ReadAll(last);
  ApplyDelta(base, last, changed);
  TableCut full = table->OpenCut();
  Expect(base == ReadAll(full), "the chain differs from the table");
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
