// Ids that an attacker computed against the public mixer, or picked for their pattern, are found as
// quickly as any others; the contents and results of tables do not depend on their salt.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "merge/unique.h"
#include "table/batch_plan.h"
#include "table/key_words.h"
#include "table/replica_table.h"
#include "table/sparse_table.h"
#include "testing/check.h"
#include "testing/chosen_keys.h"

namespace sparsefleet {
namespace {

using testing::ChosenKeys;
using testing::Expect;
using testing::ExpectEqual;
using testing::RequireOk;
using testing::Test;

constexpr std::size_t kCount = 20'000;
// Over 400 salts the longest were 30 buckets of a table's index, 28 slots of a set of keys and 133
// of words of keys, which are up to 3/4 full. By Mix64, chosen ids take 1,667 buckets and 20,001
// slots.
constexpr std::size_t kMaxProbe = 600;

SparseSpec SpecOf(AdmissionSpec admission = {}) {
  SparseSpec spec;
  spec.name = "ads";
  spec.dim = 2;
  spec.optimizer.learning_rate = 0.1;
  spec.initializer = {InitializerKind::kUniform, -1, 1};
  spec.admission = admission;
  spec.track_dirty = true;
  return spec;
}

bool ExpectShort(std::size_t probe, const std::string& what) {
  return Expect(probe >= 1 && probe <= kMaxProbe,
                what + ": a search reads " + std::to_string(probe) + " slots");
}

// Chosen ids, and patterns that occur naturally or that a linear hash would not scatter.
std::vector<std::pair<std::string, std::vector<Key>>> Patterns() {
  std::vector<std::pair<std::string, std::vector<Key>>> patterns = {{"chosen", ChosenKeys(kCount)}};
  for (const int shift : {0, 6, 32, 44, 49}) {
    std::vector<Key> keys(kCount);
    for (Key i = 0; i < kCount; ++i) keys[i] = i << shift;
    patterns.emplace_back("multiples of 2^" + std::to_string(shift), std::move(keys));
  }
  return patterns;
}

const Test kChosen("the generator is right: Mix64 would place all chosen ids together", [] {
  std::set<std::uint64_t> places;
  for (const Key key : ChosenKeys(1000)) places.insert(Mix64(key) & 0xfc000000ffffffffULL);
  ExpectEqual(places.size(), 1U);
});

const Test kOwnSalt("every hash has its own salt, which copies share", [] {
  const KeyHash first;
  const KeyHash second;
  const KeyHash copy = first;
  Expect(first(0) != second(0) || first(1) != second(1), "two salts are equal");
  ExpectEqual(first(7), copy(7));
});

const Test kSpread("ids of any pattern spread over the shards", [] {
  for (const auto& [name, keys] : Patterns()) {
    BatchPlan plan;
    plan.Build(keys, KeyHash());
    std::size_t most = 0;
    for (std::size_t i = 0; i < kNumShards; ++i) most = std::max(most, plan.shard(i).size());
    Expect(most < 2 * kCount / kNumShards, name + ": a shard has " + std::to_string(most));
  }
});

const Test kSets("ids of any pattern are found quickly in sets of keys", [] {
  for (const auto& [name, keys] : Patterns()) {
    UniqueKeys unique;
    unique.Build(keys);
    ExpectShort(unique.LongestProbe(), "unique keys, " + name);
    const KeyHash hash;
    KeyWords words(hash);
    for (const Key key : keys) words.Set(key, SlotHash(hash(key)), 1);
    ExpectShort(words.LongestProbe(), "words of keys, " + name);
  }
});

const Test kTables("ids of any pattern are found quickly in tables", [] {
  for (const auto& [name, keys] : Patterns()) {
    std::vector<float> out(keys.size() * 2);
    const auto table = RequireOk(SparseTable::Create(SpecOf()));
    RequireOk(table->Pull(keys, PullMode::kTrain, 1, out));
    ExpectEqual(table->Stats().rows, kCount);
    ExpectShort(table->LongestProbe(), "rows, " + name);
    // After a clearing cut, removed keys are kept.
    (void)table->OpenCut(false, true);
    ExpectEqual(table->Erase(keys), kCount);
    ExpectShort(table->LongestProbe(), "removed keys, " + name);

    const auto counting =
        RequireOk(SparseTable::Create(SpecOf({.kind = AdmissionKind::kCount, .count = 2})));
    RequireOk(counting->Pull(keys, PullMode::kTrain, 1, out));
    ExpectEqual(counting->Stats().candidates, kCount);
    ExpectShort(counting->LongestProbe(), "candidates, " + name);

    const auto replica = RequireOk(ReplicaTable::Create(SpecOf()));
    RequireOk(replica->Insert(keys, out));
    ExpectEqual(replica->size(), kCount);
    ExpectShort(replica->LongestProbe(), "replica, " + name);
  }
});

// A row as a cut shows it.
using Row = std::tuple<std::vector<float>, std::vector<float>, std::vector<std::uint32_t>>;

std::map<Key, Row> RowsOf(TableCut& cut, const SparseTable& table) {
  std::map<Key, Row> rows;
  RowBatch batch;
  while (cut.Next(100, batch)) {
    for (std::size_t i = 0; i < batch.keys.size(); ++i) {
      const auto part = [i](const auto& column, std::size_t width) {
        return std::vector(column.begin() + i * width, column.begin() + (i + 1) * width);
      };
      rows[batch.keys[i]] = {part(batch.values, table.dim()), part(batch.state, table.state_dim()),
                             part(batch.counters, table.counter_dim())};
    }
  }
  return rows;
}

// Everything a history of calls reveals.
struct Outcome {
  std::vector<float> pulled;
  std::vector<std::uint64_t> counts;
  std::map<Key, Row> rows;
  std::map<Key, Row> dirty_rows;
  std::vector<Key> removed;
  bool operator==(const Outcome&) const = default;
};

Outcome Replay(SparseSpec spec, const KeyHash& hash) {
  const auto table = RequireOk(SparseTable::Create(std::move(spec), [] { return 5U; }, hash));
  Outcome outcome;
  std::mt19937_64 random(3);
  for (std::uint64_t step = 1; step <= 60; ++step) {
    std::vector<Key> keys(300);
    std::vector<float> gradients(keys.size() * 2);
    for (Key& key : keys) key = random() % 700;  // some repeat
    for (float& one : gradients) one = static_cast<float>(random() % 1000) / 999.0F - 0.5F;
    std::vector<float> out(keys.size() * 2);
    RequireOk(table->Pull(keys, PullMode::kTrain, step, out));
    outcome.pulled.insert(outcome.pulled.end(), out.begin(), out.end());
    const PushResult pushed = RequireOk(table->Push(keys, gradients, step));
    outcome.counts.insert(outcome.counts.end(), {pushed.applied, pushed.not_admitted});
    if (step == 20) {
      TableCut cut = table->OpenCut(false, true);
      RowsOf(cut, *table);
      cut.Commit();
    }
    if (step % 10 == 0) outcome.counts.push_back(table->Shrink(step));
  }
  const std::vector<Key> some = {1, 2, 3, 4, 5, 600};
  outcome.counts.push_back(table->Erase(some));
  TableCut dirty = table->OpenCut(true, false);
  outcome.dirty_rows = RowsOf(dirty, *table);
  outcome.removed = dirty.Removed();
  std::ranges::sort(outcome.removed);
  TableCut all = table->OpenCut();
  outcome.rows = RowsOf(all, *table);
  const SparseStats stats = table->Stats();
  outcome.counts.insert(outcome.counts.end(), {stats.rows, stats.candidates, stats.rows_created,
                                               stats.rows_evicted, stats.not_admitted});
  return outcome;
}

const Test kAnySalt("rows, answers, counts and removed keys are the same under any salt", [] {
  for (const AdmissionKind kind : {AdmissionKind::kAlways, AdmissionKind::kCount}) {
    SparseSpec spec = SpecOf({.kind = kind, .count = 3});
    spec.optimizer.kind = OptimizerKind::kAdam;
    spec.eviction.untouched_steps = 8;
    const Outcome first = Replay(spec, KeyHash());
    Expect(first.rows.size() > 100 && !first.removed.empty(), "the history reveals too little");
    Expect(first == Replay(spec, KeyHash()), "another random salt, another outcome");
    Expect(first == Replay(spec, KeyHash({1, 0, 0, 0})), "a poor salt, another outcome");
  }
});

const Test kAnySaltReplica("what a replica sends is the same under any salt", [] {
  const auto replay = [](const KeyHash& hash) {
    const auto replica = RequireOk(ReplicaTable::Create(SpecOf(), hash));
    std::vector<Key> keys(500);
    for (Key i = 0; i < keys.size(); ++i) keys[i] = i * i;
    RequireOk(replica->Insert(keys, std::vector<float>(1000, 1.0F)));
    std::vector<float> gradients(1000);
    for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] = static_cast<float>(i);
    RequireOk(replica->Step(keys, gradients));
    std::map<Key, std::pair<float, float>> sent;
    std::vector<Key> some(64);
    std::vector<float> deltas(128);
    ReplicaWalk walk(replica, ReplicaPart::kStepped, 1.0F);
    while (const std::size_t count = RequireOk(walk.Next(some, deltas))) {
      for (std::size_t i = 0; i < count; ++i) sent[some[i]] = {deltas[2 * i], deltas[2 * i + 1]};
    }
    std::vector<float> out(1000);
    RequireOk(replica->Pull(keys, out));
    return std::pair(sent, out);
  };
  const auto first = replay(KeyHash());
  ExpectEqual(first.first.size(), 500U);
  Expect(first == replay(KeyHash()), "another salt, another outcome");
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
