#include "table/change_set.h"

#include <algorithm>
#include <atomic>
#include <set>
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

std::vector<Key> TakeAll(ChangeSet& changes) {
  std::vector<Key> all;
  for (auto keys = changes.Take(true, UINT64_MAX, 100); !keys.empty();
       keys = changes.Take(false, UINT64_MAX, 100)) {
    all.insert(all.end(), keys.begin(), keys.end());
  }
  return Sorted(all);
}

const Test kOnce("each key is returned once, including unusual ones", [] {
  ChangeSet changes;
  std::vector<Key> keys = {0, UINT64_MAX};
  for (Key key = 1; key < 5000; ++key) keys.push_back(key * 0x9e3779b97f4a7c15ULL);
  changes.Add(keys);
  changes.Add(keys);
  Expect(TakeAll(changes) == Sorted(keys), "all keys once");
  Expect(TakeAll(changes).empty(), "nothing is left");
  changes.Add(std::vector<Key>{7});
  Expect(TakeAll(changes) == std::vector<Key>{7}, "a later change");
});

const Test kBegin("taking returns what had changed when it began", [] {
  ChangeSet changes;
  changes.Add(std::vector<Key>{1, 2});
  ExpectEqual(changes.Take(true, 0, 1).size(), 1u);
  changes.Add(std::vector<Key>{1, 2, 3});
  ExpectEqual(changes.Take(false, 1, 10).size(), 1u);
  Expect(changes.Take(false, 2, 10).empty(), "3 changed later");
  Expect(Sorted(changes.Take(true, 2, 10)) == (std::vector<Key>{1, 2, 3}), "the next taking");
});

const Test kGivenUp("keys left by an abandoned taking come with the next, once", [] {
  ChangeSet changes;
  changes.Add(std::vector<Key>{1, 2, 3});
  const auto first = changes.Take(true, 0, 1);
  changes.Add(std::vector<Key>{1, 2, 3});
  Expect(Sorted(changes.Take(true, 1, 10)) == (std::vector<Key>{1, 2, 3}), "each once");
});

const Test kNotReceived("a chunk that was not received is returned again", [] {
  ChangeSet changes;
  changes.Add(std::vector<Key>{1, 2, 3});
  ExpectEqual(changes.Take(true, 0, 2).size(), 2u);
  ExpectEqual(changes.num_taken(), 1u);
  Expect(Sorted(changes.Take(true, 0, 10)) == (std::vector<Key>{1, 2, 3}), "all again");
  Expect(changes.Take(true, 1, 10).empty(), "received");
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

const Test kUnwatched("a set that nobody holds costs the table nothing", [] {
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

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
