// Cuts that their reader commits: what a failed save must leave for the next one.
#include <atomic>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "store/local_store.h"
#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectCode;
using testing::ExpectEqual;
using testing::Require;
using testing::RequireOk;
using testing::Test;

constexpr double kTimeout_s = 10;
constexpr Key kKeys = 300;

using Rows = std::map<Key, float>;

void DefineTable(LocalStore& store) {
  SparseSpec spec;
  spec.name = "ads";
  spec.dim = 1;
  spec.optimizer.learning_rate = 1.0;
  spec.track_dirty = true;
  RequireOk(store.Define(spec, kTimeout_s));
}

void PushOne(LocalStore& store, Key key) {
  const std::vector<Key> keys = {key};
  const std::vector<float> minus = {-1.0F};
  const PushSection sections[] = {{"ads", keys, minus, false, true, false}};
  RequireOk(store.Push(sections, 0, kTimeout_s).status());
}

// A save: what it has read goes to `saved` only when it is committed.
void Save(LocalStore& store, bool only_dirty, bool succeeds, Rows& saved) {
  auto cuts = RequireOk(store.OpenCuts(only_dirty, true, CutCommit::kExplicit));
  auto& cut = *std::get<std::unique_ptr<StoreCut>>(cuts.at("ads"));
  Rows read = only_dirty ? saved : Rows();
  RowBatch batch;
  std::vector<std::pair<Key, float>> rows;
  while (RequireOk(cut.Next(7, batch))) {
    for (std::size_t i = 0; i < batch.keys.size(); ++i) {
      rows.emplace_back(batch.keys[i], batch.values[i]);
    }
  }
  for (const Key key : RequireOk(cut.Removed())) read.erase(key);
  for (const auto& [key, value] : rows) read[key] = value;
  if (!succeeds) return;
  saved = std::move(read);
  RequireOk(cut.Commit());
}

Rows ReadAll(LocalStore& store) {
  auto cut = RequireOk(store.OpenCut("ads", false, false, kTimeout_s));
  Rows rows;
  RowBatch batch;
  while (RequireOk(cut->Next(100, batch))) {
    for (std::size_t i = 0; i < batch.keys.size(); ++i) rows[batch.keys[i]] = batch.values[i];
  }
  return rows;
}

const Test kFailedSaves("saves that fail at any time lose none of the changes made meanwhile", [] {
  LocalStore store;
  DefineTable(store);
  Rows saved;
  Save(store, false, true, saved);
  std::atomic<bool> stop = false;
  std::vector<std::jthread> threads;
  for (unsigned writer = 0; writer < 2; ++writer) {
    threads.emplace_back([&, writer] {
      std::mt19937 random(writer);
      while (!stop) {
        const Key key = random() % kKeys;
        if (random() % 4 == 0) {
          RequireOk(store.Erase("ads", std::vector<Key>{key}, kTimeout_s).status());
        } else {
          PushOne(store, key);
        }
      }
    });
  }
  // Two savers: cuts of failed and successful saves are open at the same time.
  threads.emplace_back([&] {
    Rows nowhere;
    while (!stop) Save(store, true, false, nowhere);
  });
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) Save(store, true, random() % 2 == 0, saved);
  stop = true;
  threads.clear();
  Save(store, true, true, saved);
  Expect(saved == ReadAll(store), "the saves do not add up to the table");
  Rows rest = {{kKeys, 0.0F}};
  Save(store, true, true, rest);
  ExpectEqual(rest.size(), 1U);  // nothing is left to save
});

const Test kRules("a cut is committed once it is read, by its reader or automatically", [] {
  LocalStore store;
  DefineTable(store);
  PushOne(store, 1);
  auto cuts = RequireOk(store.OpenCuts(true, true, CutCommit::kExplicit));
  auto& cut = *std::get<std::unique_ptr<StoreCut>>(cuts.at("ads"));
  ExpectCode(cut.Commit(), Code::kInvalidArgument);
  RowBatch batch;
  Require(RequireOk(cut.Next(10, batch)), "no rows");
  ExpectCode(cut.Commit(), Code::kInvalidArgument);  // there might be more rows
  Require(!RequireOk(cut.Next(10, batch)), "more rows than there are");
  RequireOk(cut.Commit());
  RequireOk(cut.Commit());
  auto other = RequireOk(store.OpenCut("ads", true, true, kTimeout_s));
  Require(!RequireOk(other->Next(10, batch)), "a row is dirty after the commit");
  ExpectCode(other->Commit(), Code::kInvalidArgument);
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
