#include "table/change_log.h"

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "table/sparse_table.h"
#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

std::vector<Key> Sorted(std::vector<Key> keys) {
  std::ranges::sort(keys);
  return keys;
}

std::vector<Key> TakeAll(ChangeCursor& changes) {
  std::vector<Key> all;
  for (auto keys = changes.Take(true, UINT64_MAX, 100); !keys.empty();
       keys = changes.Take(false, UINT64_MAX, 100)) {
    all.insert(all.end(), keys.begin(), keys.end());
  }
  return Sorted(all);
}

// A log and the way a table adds to it.
struct Logged {
  void Add(std::span<const Key> keys) {
    BatchPlan plan;
    plan.Build(keys, hash);
    for (std::size_t shard = 0; shard < kNumShards; ++shard) {
      const auto items = plan.shard(shard);
      log->Reserve(shard, items.size());
      log->Add(shard, items, items.size());
    }
  }
  void Add(std::initializer_list<Key> keys) { Add(std::vector<Key>(keys)); }

  const KeyHash hash;
  const std::shared_ptr<ChangeLog> log = std::make_shared<ChangeLog>(hash);
};

const Test kOnce("each key is returned once, including unusual ones", [] {
  Logged changes;
  const auto cursor = changes.log->Watch();
  std::vector<Key> keys = {0, UINT64_MAX};
  for (Key key = 1; key < 5000; ++key) keys.push_back(key * 0x9e3779b97f4a7c15ULL);
  changes.Add(keys);
  changes.Add(keys);
  Expect(TakeAll(*cursor) == Sorted(keys), "all keys once");
  Expect(TakeAll(*cursor).empty(), "nothing is left");
  changes.Add({7});
  Expect(TakeAll(*cursor) == std::vector<Key>{7}, "a later change");
});

const Test kBegin("taking returns what had changed when it began", [] {
  Logged changes;
  const auto cursor = changes.log->Watch();
  changes.Add({1, 2});
  ExpectEqual(cursor->Take(true, 0, 1).size(), 1u);
  changes.Add({1, 2, 3});
  ExpectEqual(cursor->Take(false, 1, 10).size(), 1u);
  Expect(cursor->Take(false, 2, 10).empty(), "3 changed later");
  Expect(Sorted(cursor->Take(true, 2, 10)) == (std::vector<Key>{1, 2, 3}), "the next taking");
});

const Test kGivenUp("keys left by an abandoned taking come with the next, once", [] {
  Logged changes;
  const auto cursor = changes.log->Watch();
  changes.Add({1, 2, 3});
  const auto first = cursor->Take(true, 0, 1);
  changes.Add({1, 2, 3});
  Expect(Sorted(cursor->Take(true, 1, 10)) == (std::vector<Key>{1, 2, 3}), "each once");
});

const Test kNotReceived("a chunk that was not received is returned again", [] {
  Logged changes;
  const auto cursor = changes.log->Watch();
  changes.Add({1, 2, 3});
  ExpectEqual(cursor->Take(true, 0, 2).size(), 2u);
  ExpectEqual(cursor->num_taken(), 1u);
  Expect(Sorted(cursor->Take(true, 0, 10)) == (std::vector<Key>{1, 2, 3}), "all again");
  Expect(cursor->Take(true, 1, 10).empty(), "received");
});

const Test kOwnPosition("each watcher gets what has changed since it last asked", [] {
  Logged changes;
  const auto first = changes.log->Watch();
  changes.Add({1, 2});
  Expect(TakeAll(*first) == (std::vector<Key>{1, 2}));
  const auto second = changes.log->Watch();
  changes.Add({2, 3});
  Expect(TakeAll(*first) == (std::vector<Key>{2, 3}));
  changes.Add({2, 4});
  Expect(TakeAll(*second) == (std::vector<Key>{2, 3, 4}), "2 comes once");
  Expect(TakeAll(*first) == (std::vector<Key>{2, 4}));
  const std::vector<Key> restored = {4, 9};
  changes.Add({4});
  first->Restore(restored);
  Expect(Sorted(first->Pending()) == (std::vector<Key>{4, 4, 9}), "for a snapshot");
  Expect(TakeAll(*first) == (std::vector<Key>{4, 9}), "after a restart");
});

const Test kModel("any order of changes and takings returns what a set per watcher would", [] {
  Logged changes;
  std::mt19937_64 random(7);
  std::vector<std::shared_ptr<ChangeCursor>> cursors;
  std::vector<std::set<Key>> wanted;
  for (int event = 0; event < 20000; ++event) {
    const std::uint64_t draw = random() % 100;
    if (cursors.size() < 3 || (draw == 0 && cursors.size() < 12)) {
      cursors.push_back(changes.log->Watch());
      wanted.emplace_back();
    } else if (draw == 1) {
      const std::size_t at = random() % cursors.size();
      cursors.erase(cursors.begin() + static_cast<std::ptrdiff_t>(at));
      wanted.erase(wanted.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (draw < 20) {
      const std::size_t at = random() % cursors.size();
      const auto keys = TakeAll(*cursors[at]);
      if (!Expect(keys == std::vector<Key>(wanted[at].begin(), wanted[at].end()))) return;
      wanted[at].clear();
    } else {
      std::vector<Key> keys;
      for (std::uint64_t i = 0; i < 1 + draw % 8; ++i) keys.push_back(random() % 3000);
      changes.Add(keys);
      for (auto& set : wanted) set.insert(keys.begin(), keys.end());
    }
  }
});

const Test kMemory("memory depends on the keys, not on watchers, changes or who lags behind", [] {
  constexpr Key kKeys = 20000;
  std::vector<Key> keys(kKeys);
  for (Key key = 0; key < kKeys; ++key) keys[key] = key;
  const auto bytes_with = [&](std::size_t watchers) {
    Logged changes;
    std::vector<std::shared_ptr<ChangeCursor>> cursors;
    for (std::size_t i = 0; i < watchers; ++i) cursors.push_back(changes.log->Watch());
    for (int push = 0; push < 50; ++push) {
      changes.Add(keys);
      // All but the first take their changes.
      for (std::size_t i = 1; i < watchers; ++i) TakeAll(*cursors[i]);
    }
    Expect(TakeAll(*cursors[0]) == keys, "the last one has missed nothing");
    const std::size_t bytes = changes.log->memory_bytes();
    cursors.clear();
    Expect(changes.log->memory_bytes() < 100000, "memory is freed when nobody watches");
    return bytes;
  };
  const std::size_t one = bytes_with(1);
  const std::size_t many = bytes_with(40);
  Expect(many < 3 * one, std::to_string(one) + " bytes, then " + std::to_string(many));
  Expect(many < 160 * kKeys, std::to_string(many) + " bytes");
});

std::shared_ptr<SparseTable> MakeTable(AdmissionKind admission = AdmissionKind::kAlways) {
  SparseSpec spec;
  spec.name = "t";
  spec.dim = 1;
  spec.admission.kind = admission;
  spec.admission.count = 2;
  return RequireOk(SparseTable::Create(spec));
}

const Test kTable("pushes and imports change rows, pulls and rejected gradients do not", [] {
  const auto table = MakeTable(AdmissionKind::kCount);
  const auto changes = table->WatchChanges();
  std::vector<float> out(2);
  const std::vector<Key> keys = {1, 2};
  for (int pull = 0; pull < 2; ++pull) RequireOk(table->Pull(keys, PullMode::kTrain, 1, out));
  Expect(TakeAll(*changes).empty(), "created by a pull");
  const std::vector<Key> pushed = {1, 2, 3};
  const std::vector<float> gradients = {1, NAN, 1};
  ExpectEqual(RequireOk(table->Push(pushed, gradients, 1)).applied, 1u);
  Expect(TakeAll(*changes) == std::vector<Key>{1}, "2 was not finite, 3 is not admitted");
  RowBatch rows;
  rows.keys = {5};
  rows.values = {1};
  RequireOk(table->Import(rows));
  Expect(TakeAll(*changes) == std::vector<Key>{5}, "imported");
});

const Test kUnwatched("a cursor that nobody holds costs the table nothing", [] {
  const auto table = MakeTable();
  auto changes = table->WatchChanges();
  const auto other = table->WatchChanges();
  changes.reset();
  const std::vector<Key> keys = {1};
  const std::vector<float> gradients = {1};
  RequireOk(table->Push(keys, gradients, 1));
  Expect(TakeAll(*other) == keys, "the other one keeps working");
});

const Test kRead("reading skips keys without a row, and Contains identifies them", [] {
  const auto table = MakeTable();
  const std::vector<Key> known = {4, 8};
  const std::vector<float> gradients = {1, 2};
  RequireOk(table->Push(known, gradients, 1));
  const std::vector<Key> asked = {9, 4, 7, 8, 10};
  const RowBatch rows = RequireOk(table->Read(asked));
  Expect(rows.keys == known, "keys");
  std::vector<float> out(2);
  RequireOk(table->Pull(known, PullMode::kInferZeros, 1, out));
  Expect(rows.values == out, "values");
  bool found[5];
  RequireOk(table->Contains(asked, found));
  Expect(!found[0] && found[1] && !found[2] && found[3] && !found[4], "which keys have rows");
  ExpectCode(table->Contains(asked, std::span(found, 2)), Code::kShapeMismatch);
});

const Test kConcurrent("no change is lost while others push", [] {
  constexpr int kPushes = 2000;
  const auto table = MakeTable();
  const auto changes = table->WatchChanges();
  std::atomic<int> pushing = 2;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      const std::vector<float> one = {1};
      for (int i = 0; i < kPushes; ++i) {
        const std::vector<Key> key = {static_cast<Key>((i * 2 + t) % 64)};
        if (!table->Push(key, one, 1).ok()) Fail("push", Location::current());
      }
      --pushing;
    });
  }
  std::vector<float> last(64, 0.0F);
  for (bool is_last = false; !is_last;) {
    is_last = pushing == 0;
    for (const Key key : TakeAll(*changes)) {
      const RowBatch row = RequireOk(table->Read(std::vector<Key>{key}));
      last[key] = row.values[0];
    }
  }
  std::vector<Key> keys(64);
  for (Key key = 0; key < 64; ++key) keys[key] = key;
  Expect(RequireOk(table->Read(keys)).values == last, "the last taken values are the final ones");
});

const Test kComesAndGoes("a watcher that leaves takes no changes from one that comes", [] {
  Logged changes;
  std::atomic<bool> is_done = false;
  std::jthread other([&] {
    while (!is_done) changes.log->Watch();
  });
  const std::vector<Key> keys = {1, 2, 3, 4, 5, 6, 7, 8};
  std::size_t missing = 0;
  for (int i = 0; i < 3'000; ++i) {
    const auto cursor = changes.log->Watch();
    changes.Add(keys);
    if (TakeAll(*cursor) != keys) ++missing;
  }
  is_done = true;
  ExpectEqual(missing, std::size_t{0});
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
