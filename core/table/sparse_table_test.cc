#include "table/sparse_table.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <thread>

#include "table/initializer.h"
#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectCode;
using testing::ExpectEqual;
using testing::ExpectNear;
using testing::Require;
using testing::RequireOk;
using testing::RunTests;
using testing::Test;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

SparseSpec SgdSpec(std::uint32_t dim, double learning_rate = 1.0) {
  SparseSpec spec;
  spec.name = "ads";
  spec.dim = dim;
  spec.optimizer.learning_rate = learning_rate;
  return spec;
}

std::vector<float> PullRows(SparseTable& table, std::vector<Key> keys,
                            PullMode mode = PullMode::kTrain, std::uint64_t step = 0) {
  std::vector<float> out(keys.size() * table.dim(), kNan);
  RequireOk(table.Pull(keys, mode, step, out));
  return out;
}

PushResult PushRows(SparseTable& table, std::vector<Key> keys, std::vector<float> gradients,
                    std::uint64_t step = 0) {
  return RequireOk(table.Push(keys, gradients, step));
}

std::map<Key, std::vector<float>> ReadAll(TableCut cut, std::uint32_t dim) {
  std::map<Key, std::vector<float>> rows;
  RowBatch batch;
  while (cut.Next(7, batch)) {
    for (std::size_t i = 0; i < batch.keys.size(); ++i) {
      Expect(!rows.contains(batch.keys[i]), "a cut returns a key twice");
      rows[batch.keys[i]].assign(batch.values.begin() + i * dim,
                                 batch.values.begin() + (i + 1) * dim);
    }
  }
  return rows;
}

const Test kPushApplies("a push moves a row against its gradient, a pull reads it back", [] {
  auto table = RequireOk(SparseTable::Create(SgdSpec(2, 0.5)));
  PushRows(*table, {7, 9}, {1, 2, 3, 4});
  ExpectEqual(PullRows(*table, {9, 7}), std::vector<float>({-1.5, -2, -0.5, -1}));
  RequireOk(table->SetLearningRate(1.0));
  PushRows(*table, {7}, {1, 1});
  ExpectEqual(PullRows(*table, {7}), std::vector<float>({-1.5, -2}));
});

const Test kCandidatesAge("a shrink halves admission counts and forgets keys at 0", [] {
  SparseSpec spec = SgdSpec(1);
  spec.admission.kind = AdmissionKind::kCount;
  spec.admission.count = 4;
  auto table = RequireOk(SparseTable::Create(spec));
  std::vector<Key> once;
  for (Key key = 100; key < 20100; ++key) once.push_back(key);
  PullRows(*table, once);
  for (int i = 0; i < 3; ++i) PullRows(*table, {1, 2});
  const SparseStats before = table->Stats();
  ExpectEqual(before.candidates, 20002U);
  ExpectEqual(table->Shrink(0), 0U);
  ExpectEqual(table->Stats().candidates, 2U);
  Expect(table->Stats().memory_bytes < before.memory_bytes, "forgotten keys still cost memory");
  PullRows(*table, {1, 1});  // counted 1 after halving, now 2
  PullRows(*table, {1});
  ExpectEqual(table->Stats().rows, 0U);
  PullRows(*table, {1});
  ExpectEqual(table->Stats().rows, 1U);
  table->Shrink(0);
  ExpectEqual(table->Stats().candidates, 0U);
});

RowBatch BareRows(std::vector<Key> keys) {
  RowBatch rows;
  rows.values.assign(keys.size(), 3.0F);
  rows.keys = std::move(keys);
  return rows;
}

const Test kImportIsTouch("rows imported without counters age from their import", [] {
  SparseSpec spec = SgdSpec(1);
  spec.eviction.untouched_steps = 100;
  spec.eviction.untouched_seconds = 60;
  std::uint32_t seconds = 1'000'000;
  auto table = RequireOk(SparseTable::Create(spec, [&] { return seconds; }));
  PushRows(*table, {1}, {1}, 5000);
  PullRows(*table, {1}, PullMode::kTrain, 6000);
  RequireOk(table->Import(BareRows({2, 3})));
  RowBatch cut;
  Require(table->OpenCut().Next(10, cut), "rows");
  for (std::size_t i = 0; i < cut.keys.size(); ++i) {
    ExpectEqual(cut.counters[2 * i], cut.keys[i] == 1 ? 5000U : 6000U);
    ExpectEqual(cut.counters[2 * i + 1], seconds);
  }
  ExpectEqual(table->Shrink(6100), 1U);
  PushRows(*table, {2}, {1}, 6101);
  ExpectEqual(table->Shrink(6101), 1U);
  seconds += 61;
  RequireOk(table->Import(BareRows({4})));
  ExpectEqual(table->Shrink(6101), 1U);
  ExpectEqual(table->Stats().rows, 1U);
});

const Test kImportBeforeSteps("rows imported before any step age from the first one", [] {
  SparseSpec spec = SgdSpec(1);
  spec.eviction.untouched_steps = 100;
  spec.track_count = true;
  auto table = RequireOk(SparseTable::Create(spec));
  RequireOk(table->Import(BareRows({1, 2})));
  ExpectEqual(table->Shrink(1'000'000), 0U);
  PushRows(*table, {1}, {1}, 1'000'050);
  ExpectEqual(table->Shrink(1'000'100), 0U);
  // The same after a round trip through a cut.
  RowBatch rows;
  Require(table->OpenCut().Next(10, rows), "rows");
  auto copy = RequireOk(SparseTable::Create(spec));
  RequireOk(copy->Import(rows));
  RequireOk(copy->Import(BareRows({3})));
  ExpectEqual(copy->Shrink(1'000'150), 0U);
  ExpectEqual(copy->Shrink(1'000'151), 3U);
  ExpectEqual(table->Shrink(1'000'101), 1U);
});

const Test kRepeats("gradients of a repeated key are summed before the optimizer sees them", [] {
  SparseSpec spec = SgdSpec(1);
  spec.optimizer.kind = OptimizerKind::kAdagrad;
  auto repeated = RequireOk(SparseTable::Create(spec));
  auto summed = RequireOk(SparseTable::Create(spec));
  const PushResult result = PushRows(*repeated, {5, 6, 5, 5}, {1, 10, 2, 3});
  ExpectEqual(result.applied, 2U);
  PushRows(*summed, {6, 5}, {10, 6});
  ExpectEqual(PullRows(*repeated, {5, 6}), PullRows(*summed, {5, 6}));
});

const Test kWrongPromise("a wrong promise of unique keys creates no second row", [] {
  auto table = RequireOk(SparseTable::Create(SgdSpec(1)));
  const std::vector<Key> keys(100, 3);
  const std::vector<float> gradients(100, 1.0F);
  RequireOk(table->Push(keys, gradients, 0, true));
  ExpectEqual(table->Stats().rows, 1U);
  ExpectEqual(PullRows(*table, {3})[0], -100.0F);
});

const Test kAllKeys("every 64-bit key is legal", [] {
  auto table = RequireOk(SparseTable::Create(SgdSpec(1)));
  const std::vector<Key> keys = {0, 1, ~Key{0}, Key{1} << 63, 0xffffffff, 0xffffffff00000000};
  PushRows(*table, keys, {1, 2, 3, 4, 5, 6});
  ExpectEqual(PullRows(*table, keys), std::vector<float>({-1, -2, -3, -4, -5, -6}));
  ExpectEqual(table->Stats().rows, keys.size());
});

const Test kInference("an inference pull stores nothing", [] {
  SparseSpec spec = SgdSpec(3);
  spec.initializer = {InitializerKind::kUniform, -1, 1};
  auto table = RequireOk(SparseTable::Create(spec));
  ExpectEqual(PullRows(*table, {4}, PullMode::kInferZeros), std::vector<float>(3, 0.0F));
  const auto initial = PullRows(*table, {4, 4}, PullMode::kInferInitial);
  ExpectEqual(table->Stats().rows, 0U);
  ExpectEqual(PullRows(*table, {4, 4}), initial);
  ExpectEqual(table->Stats().rows, 1U);
});

const Test kOrderFree("initial values depend only on seed, key and column", [] {
  SparseSpec spec = SgdSpec(4);
  spec.initializer = {InitializerKind::kNormal, 0, 1};
  auto one = RequireOk(SparseTable::Create(spec));
  auto other = RequireOk(SparseTable::Create(spec));
  const auto forward = PullRows(*one, {1, 2, 3});
  PullRows(*other, {3});
  PullRows(*other, {2, 1});
  ExpectEqual(PullRows(*other, {1, 2, 3}), forward);
  Expect(forward[0] != forward[1] && forward[0] != forward[4], "values repeat");
  spec.seed = 1;
  auto reseeded = RequireOk(SparseTable::Create(spec));
  Expect(PullRows(*reseeded, {1, 2, 3}) != forward, "the seed has no effect");
});

const Test kShapes("wrong lengths are rejected and named", [] {
  auto table = RequireOk(SparseTable::Create(SgdSpec(2)));
  const std::vector<Key> keys = {1, 2};
  std::vector<float> three(3);
  ExpectCode(table->Pull(keys, PullMode::kTrain, 0, three), Code::kShapeMismatch);
  const Status status = table->Push(keys, three, 0).status();
  ExpectCode(status, Code::kShapeMismatch);
  ExpectEqual(status.message(), "table 'ads': 2 keys of width 2 need 4 gradients, got 3");
  RowBatch rows{.keys = keys, .values = {1, 2, 3, 4}, .state = {1}, .counters = {}};
  ExpectCode(table->Import(rows), Code::kShapeMismatch);
  ExpectEqual(table->Stats().rows, 0U);
  RequireOk(table->Pull({}, PullMode::kTrain, 0, {}));
  RequireOk(table->Push({}, {}, 0));
});

const Test kReject("a non-finite gradient skips only its row, and is counted", [] {
  auto table = RequireOk(SparseTable::Create(SgdSpec(2)));
  const PushResult result =
      PushRows(*table, {1, 2, 3, 2, 4}, {1, 1, 1, 1, kNan, 1, kInfinity, 0, 1, 1});
  ExpectEqual(result, PushResult{.applied = 2, .rejected_non_finite = 2});
  ExpectEqual(table->Stats().rejected_non_finite, 2U);
  ExpectEqual(table->Stats().rows, 2U);
  const float most = std::numeric_limits<float>::max();
  ExpectEqual(PushRows(*table, {5, 5}, {most, 0, most, 0}).rejected_non_finite, 1U);
});

const Test kRaise("under the raise policy a bad push applies nothing", [] {
  SparseSpec spec = SgdSpec(2);
  spec.non_finite = NonFinitePolicy::kRaise;
  auto table = RequireOk(SparseTable::Create(spec));
  const std::vector<Key> keys = {1, 77};
  const std::vector<float> gradients = {1, 1, 1, kNan};
  const Status status = table->Push(keys, gradients, 0).status();
  ExpectCode(status, Code::kNonFinite);
  Expect(status.message().find("'ads': gradient of key 77 (row 1, column 1) is nan") !=
             std::string::npos,
         status.message());
  ExpectEqual(table->Stats().rows, 0U);
});

const Test kAdd("Add bypasses the optimizer", [] {
  SparseSpec spec = SgdSpec(1);
  spec.optimizer.kind = OptimizerKind::kAdam;
  auto table = RequireOk(SparseTable::Create(spec));
  const std::vector<Key> keys = {1, 1, 2};
  RequireOk(table->Add(keys, std::vector<float>{0.5, 0.25, 4}, 0));
  ExpectEqual(PullRows(*table, {1, 2}), std::vector<float>({0.75, 4}));
  RowBatch rows;
  auto cut = table->OpenCut();
  Require(cut.Next(10, rows));
  ExpectEqual(rows.state, std::vector<float>(rows.keys.size() * table->state_dim(), 0.0F));
});

const Test kAdmissionByCount("admission by count holds a key back until its n-th training pull",
                             [] {
                               SparseSpec spec = SgdSpec(1);
                               spec.initializer = {InitializerKind::kConstant, 5, 0};
                               spec.admission = {AdmissionKind::kCount, 3, 1};
                               auto table = RequireOk(SparseTable::Create(spec));
                               ExpectEqual(PullRows(*table, {8, 8}), std::vector<float>({0, 0}));
                               PullRows(*table, {8}, PullMode::kInferInitial);
                               ExpectEqual(PullRows(*table, {8})[0], 0.0F);
                               ExpectEqual(PushRows(*table, {8}, {1}),
                                           PushResult{.not_admitted = 1});
                               ExpectEqual(table->Stats().candidates, 1U);
                               ExpectEqual(PullRows(*table, {8, 8}), std::vector<float>({5, 5}));
                               ExpectEqual(table->Stats().candidates, 0U);
                               ExpectEqual(table->Stats().rows, 1U);
                               ExpectEqual(PushRows(*table, {8}, {1}).applied, 1U);
                               PullRows(*table, {9});
                               table->Erase(std::vector<Key>{9});
                               ExpectEqual(table->Stats().candidates, 0U);
                             });

const Test kAdmissionByChance("admission by probability is pure in seed, key and step", [] {
  SparseSpec spec = SgdSpec(1);
  spec.admission = {AdmissionKind::kProbability, 1, 0.25};
  auto one = RequireOk(SparseTable::Create(spec));
  auto other = RequireOk(SparseTable::Create(spec));
  std::vector<Key> keys(4000);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  PullRows(*one, keys, PullMode::kTrain, 3);
  for (const Key key : keys) PullRows(*other, {key}, PullMode::kTrain, 3);
  const std::uint64_t born = one->Stats().rows;
  Expect(born > 850 && born < 1150, "about a quarter should be created");
  ExpectEqual(ReadAll(one->OpenCut(), 1), ReadAll(other->OpenCut(), 1));
  PullRows(*one, keys, PullMode::kTrain, 3);
  ExpectEqual(one->Stats().rows, born);
  PullRows(*one, keys, PullMode::kTrain, 4);
  Expect(one->Stats().rows > born, "another step draws again");
});

const Test kEvictSteps("rows untouched for more than n steps are evicted", [] {
  SparseSpec spec = SgdSpec(1);
  spec.eviction.untouched_steps = 10;
  auto table = RequireOk(SparseTable::Create(spec));
  PushRows(*table, {1}, {1}, 100);
  PullRows(*table, {2}, PullMode::kTrain, 105);
  PullRows(*table, {1}, PullMode::kTrain, 111);
  ExpectEqual(table->Shrink(110), 0U);
  ExpectEqual(table->Shrink(50), 0U);
  ExpectEqual(table->Shrink(111), 1U);
  ExpectEqual(ReadAll(table->OpenCut(), 1).count(2), 1U);
  ExpectEqual(table->Stats().rows_evicted, 1U);
});

const Test kEvictSeconds("rows untouched for more than n seconds are evicted", [] {
  SparseSpec spec = SgdSpec(1);
  spec.eviction.untouched_seconds = 60;
  auto now = std::make_shared<std::uint32_t>(1000);
  auto table = RequireOk(SparseTable::Create(spec, [now] { return *now; }));
  PushRows(*table, {1, 2}, {1, 1});
  *now = 1050;
  PushRows(*table, {2}, {1});
  *now = 1060;
  ExpectEqual(table->Shrink(0), 0U);
  *now = 1061;
  ExpectEqual(table->Shrink(0), 1U);
  ExpectEqual(ReadAll(table->OpenCut(), 1).count(2), 1U);
});

const Test kEvictCountAndNorm("rows pushed too rarely or too small are evicted", [] {
  SparseSpec spec = SgdSpec(2);
  spec.eviction.min_count = 2;
  auto counted = RequireOk(SparseTable::Create(spec));
  PushRows(*counted, {1, 2}, {1, 1, 1, 1});
  PushRows(*counted, {2}, {1, 1});
  PullRows(*counted, {3});
  ExpectEqual(counted->Shrink(0), 2U);
  ExpectEqual(ReadAll(counted->OpenCut(), 2).count(2), 1U);

  spec.eviction = {.min_norm = 5.0};
  auto measured = RequireOk(SparseTable::Create(spec));
  PushRows(*measured, {1, 2}, {3, 4, 3, 3.9F});
  ExpectEqual(measured->Shrink(0), 1U);
  ExpectEqual(ReadAll(measured->OpenCut(), 2).count(1), 1U);
});

const Test kRandomHistory("erase, shrink and reinsert agree with a plain map", [] {
  SparseSpec spec = SgdSpec(1);
  spec.eviction.min_norm = 0.5;
  auto table = RequireOk(SparseTable::Create(spec));
  std::map<Key, float> wanted;
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<Key> keys(200);
    for (Key& key : keys) key = random() % 20000;
    if (round % 3 == 2) {
      std::uint64_t there = 0;
      for (const Key key : keys) there += wanted.erase(key);
      ExpectEqual(table->Erase(keys), there);
    } else {
      std::vector<float> gradients(keys.size());
      for (std::size_t i = 0; i < keys.size(); ++i) {
        gradients[i] = static_cast<float>(random() % 5) - 2.0F;
        wanted[keys[i]] -= gradients[i];
      }
      PushRows(*table, keys, gradients);
    }
    if (round % 50 == 49) {
      const auto gone = std::erase_if(wanted, [](auto& row) { return row.second == 0; });
      ExpectEqual(table->Shrink(0), gone);
    }
  }
  ExpectEqual(table->Stats().rows, wanted.size());
  const auto found = ReadAll(table->OpenCut(), 1);
  ExpectEqual(found.size(), wanted.size());
  for (const auto& [key, value] : wanted) {
    if (!Expect(found.contains(key) && found.at(key)[0] == value, "row differs")) break;
  }
});

const Test kImportExport("a table exported and imported is the same table", [] {
  SparseSpec spec = SgdSpec(3);
  spec.optimizer.kind = OptimizerKind::kAdam;
  spec.initializer = {InitializerKind::kNormal, 0, 1};
  spec.track_count = spec.track_step = spec.track_seconds = spec.track_dirty = true;
  auto from = RequireOk(SparseTable::Create(spec, [] { return 17U; }));
  auto to = RequireOk(SparseTable::Create(spec, [] { return 18U; }));
  for (std::uint64_t step = 1; step <= 5; ++step) {
    std::vector<Key> keys;
    for (Key key = 0; key < 100 * step; ++key) keys.push_back(key);
    PushRows(*from, keys, std::vector<float>(keys.size() * 3, 0.1F * static_cast<float>(step)),
             step);
  }
  RowBatch batch;
  auto cut = from->OpenCut();
  while (cut.Next(64, batch)) {
    ExpectEqual(batch.counters.size(), batch.keys.size() * 3);
    RequireOk(to->Import(batch));
  }
  Expect(!cut.Next(64, batch) && batch.keys.empty(), "a cut at its end stays there");
  std::map<Key, std::vector<std::uint32_t>> counters;
  auto again = to->OpenCut();
  while (again.Next(64, batch)) {
    for (std::size_t i = 0; i < batch.keys.size(); ++i) {
      counters[batch.keys[i]] = {batch.counters[3 * i], batch.counters[3 * i + 1],
                                 batch.counters[3 * i + 2]};
    }
  }
  ExpectEqual(counters.size(), 500U);
  Expect(counters[50] == std::vector<std::uint32_t>({5, 5, 17}), "counters of an early row");
  Expect(counters[450] == std::vector<std::uint32_t>({1, 5, 17}), "counters of a late row");
  PushRows(*from, {3, 450}, {1, 2, 3, 4, 5, 6}, 6);
  PushRows(*to, {3, 450}, {1, 2, 3, 4, 5, 6}, 6);
  Expect(ReadAll(from->OpenCut(), 3) == ReadAll(to->OpenCut(), 3), "rows differ");
});

const Test kClear("a cleared table is empty and frees its memory", [] {
  auto table = RequireOk(SparseTable::Create(SgdSpec(16)));
  const std::uint64_t empty = table->Stats().memory_bytes;
  std::vector<Key> keys(50000);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i << 32;
  PullRows(*table, keys);
  Expect(table->Stats().memory_bytes >= table->Stats().payload_bytes, "less than the payload");
  table->Clear();
  ExpectEqual(table->Stats().rows, 0U);
  ExpectEqual(table->Stats().memory_bytes, empty);
  PushRows(*table, {1}, std::vector<float>(16, 1.0F));
  ExpectEqual(table->Stats().rows, 1U);
});

const Test kShrinkFrees("memory shrinks with the rows", [] {
  SparseSpec spec = SgdSpec(16);
  spec.eviction.min_count = 1;
  auto table = RequireOk(SparseTable::Create(spec));
  std::vector<Key> keys(200000);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  PullRows(*table, keys);
  const std::uint64_t full = table->Stats().memory_bytes;
  PushRows(*table, {1, 2, 3}, std::vector<float>(48, 1.0F));
  ExpectEqual(table->Shrink(0), keys.size() - 3);
  Expect(table->Stats().memory_bytes < full / 2, "memory was not freed");
  ExpectEqual(PullRows(*table, {2})[0], -1.0F);
});

const Test kOneBirth("threads that pull the same new keys create each row once", [] {
  SparseSpec spec = SgdSpec(4);
  spec.initializer = {InitializerKind::kUniform, -1, 1};
  auto table = RequireOk(SparseTable::Create(spec));
  std::vector<std::vector<float>> seen(4);
  {
    std::vector<std::jthread> threads;
    for (auto& rows : seen) {
      threads.emplace_back([&] {
        for (Key base = 0; base < 5000; base += 50) {
          std::vector<Key> keys;
          for (Key key = base; key < base + 50; ++key) keys.push_back(key);
          const auto some = PullRows(*table, keys);
          rows.insert(rows.end(), some.begin(), some.end());
        }
      });
    }
  }
  ExpectEqual(table->Stats().rows_created, 5000U);
  for (const auto& rows : seen) Expect(rows == seen[0], "threads saw different rows");
});

const Test kNoTear("no reader sees half an update of a row", [] {
  auto table = RequireOk(SparseTable::Create(SgdSpec(64)));
  const std::vector<Key> keys = {1, 2, 3, 4};
  std::atomic<bool> stop = false;
  {
    std::vector<std::jthread> threads;
    for (int writer = 0; writer < 2; ++writer) {
      threads.emplace_back([&] {
        const std::vector<float> ones(keys.size() * 64, 1.0F);
        for (int i = 0; i < 3000; ++i) RequireOk(table->Push(keys, ones, 0));
        stop = true;
      });
    }
    threads.emplace_back([&] {
      while (!stop) {
        const auto rows = PullRows(*table, keys);
        for (std::size_t i = 0; i < rows.size(); ++i) {
          if (!Expect(rows[i] == rows[i / 64 * 64], "torn row")) return;
        }
      }
    });
  }
  ExpectEqual(PullRows(*table, {1})[0], -6000.0F);
});

const Test kBadSpec("the error for an impossible spec names the field", [] {
  SparseSpec spec = SgdSpec(1);
  spec.optimizer.kind = OptimizerKind::kAdam;
  spec.optimizer.beta2 = 1.5;
  const Status status = SparseTable::Create(spec).status();
  ExpectCode(status, Code::kInvalidArgument);
  ExpectEqual(status.message(), "table 'ads': optimizer.beta2 must be in [0, 1), got 1.5");
  auto table = RequireOk(SparseTable::Create(SgdSpec(1)));
  ExpectCode(table->SetLearningRate(-1), Code::kInvalidArgument);
  ExpectCode(table->SetLearningRate(kNan), Code::kInvalidArgument);
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
