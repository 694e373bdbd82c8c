#include "table/replica_table.h"

#include <atomic>
#include <cmath>
#include <map>
#include <thread>
#include <vector>

#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

std::shared_ptr<ReplicaTable> MakeReplica(std::uint32_t dim, double lr = 1.0,
                                          NonFinitePolicy policy = NonFinitePolicy::kRejectRow) {
  SparseSpec spec;
  spec.name = "rows";
  spec.dim = dim;
  spec.optimizer.learning_rate = lr;
  spec.non_finite = policy;
  auto made = ReplicaTable::Create(spec);
  Require(made.ok(), "a replica");
  return made.value();
}

std::vector<Key> Keys(std::size_t count) {
  std::vector<Key> keys(count);
  for (std::size_t i = 0; i < count; ++i) keys[i] = i * 0x9e3779b97f4a7c15ULL;
  return keys;
}

std::vector<float> Rows(std::size_t count, float value) { return std::vector<float>(count, value); }

// The first difference of each row, by key.
std::map<Key, float> TakeAll(ReplicaWalk walk, std::uint32_t dim, std::size_t room) {
  std::map<Key, float> all;
  std::vector<Key> keys(room);
  std::vector<float> deltas(room * dim);
  for (;;) {
    auto count = walk.Next(keys, deltas);
    Require(count.ok() && count.value() <= room, "rows within the room");
    if (count.value() == 0) return all;
    for (std::size_t i = 0; i < count.value(); ++i) {
      Expect(all.emplace(keys[i], deltas[i * dim]).second, "each row once");
    }
  }
}

const Test kExchange("a share of what was trained is sent, the rest stays", [] {
  constexpr std::size_t kNum = 1000;
  const auto replica = MakeReplica(3);
  const auto keys = Keys(kNum);
  std::vector<float> out(kNum * 3);
  auto unknown = replica->Pull(keys, out);
  ExpectEqual(unknown.value().size(), kNum);
  Expect(replica->Insert(keys, Rows(kNum * 3, 2.0F)).ok());
  Expect(replica->Insert(keys, Rows(kNum * 3, 9.0F)).ok(), "known rows stay");
  Expect(replica->Step(std::span(keys).first(400), Rows(1200, 1.0F)).ok());
  ExpectEqual(replica->size(), std::uint64_t{kNum});
  const auto sent = TakeAll({replica, ReplicaPart::kStepped, 4}, 3, 37);
  ExpectEqual(sent.size(), std::size_t{400});
  for (const auto& [key, delta] : sent) ExpectEqual(delta, -0.25F);
  Expect(TakeAll({replica, ReplicaPart::kStepped, 4}, 3, 37).empty(), "none was stepped since");
  const auto rest = TakeAll({replica, ReplicaPart::kUnsent, 1}, 3, 37);
  ExpectEqual(rest.size(), std::size_t{400});
  for (const auto& [key, delta] : rest) ExpectEqual(delta, -0.75F);
  Expect(TakeAll({replica, ReplicaPart::kUnsent, 1}, 3, 37).empty(), "all is sent");
});

const Test kUnsentRowsWereStepped("rows sent as unsent do not count as stepped", [] {
  const auto replica = MakeReplica(1);
  const auto keys = Keys(10);
  Expect(replica->Insert(keys, Rows(10, 0.0F)).ok());
  Expect(replica->Step(keys, Rows(10, 1.0F)).ok());
  ExpectEqual(TakeAll({replica, ReplicaPart::kUnsent, 1}, 1, 4).size(), std::size_t{10});
  Expect(TakeAll({replica, ReplicaPart::kStepped, 1}, 1, 4).empty());
});

const Test kTakeOver("changes of others are added to what is trained here", [] {
  const auto replica = MakeReplica(2);
  const auto keys = Keys(2);
  Expect(replica->Insert(keys, Rows(4, 1.0F)).ok());
  Expect(replica->Step(keys, Rows(4, 0.5F)).ok());
  const std::vector<Key> changed = {keys[1], 12345};
  Expect(replica->TakeOver(changed, Rows(4, 11.0F), false).ok());
  std::vector<float> out(4);
  Expect(replica->Pull(keys, out).value().empty());
  Expect(out == std::vector<float>{0.5F, 0.5F, 10.5F, 10.5F});
  ExpectEqual(TakeAll({replica, ReplicaPart::kUnsent, 1}, 2, 4).at(keys[1]), -0.5F);
  Expect(replica->TakeOver(changed, Rows(4, 4.0F), true).ok());
  Expect(replica->Pull(keys, out).value().empty());
  Expect(out == std::vector<float>{0.5F, 0.5F, 4.0F, 4.0F});
  ExpectEqual(replica->size(), std::uint64_t{2});
});

const Test kNothingLeft("after everything is sent, a row equals the servers' sum", [] {
  const auto replica = MakeReplica(1);
  const auto keys = Keys(1);
  Expect(replica->Insert(keys, Rows(1, 0.1F)).ok());
  float served = 0.1F;
  for (int step = 0; step < 100; ++step) {
    Expect(replica->Step(keys, Rows(1, std::sin(static_cast<float>(step)) / 3.0F)).ok());
    for (const auto& [key, delta] : TakeAll({replica, ReplicaPart::kStepped, 3}, 1, 1)) {
      served += delta;
    }
  }
  for (const auto& [key, delta] : TakeAll({replica, ReplicaPart::kUnsent, 1}, 1, 1)) {
    served += delta;
  }
  std::vector<float> out(1);
  Expect(replica->Pull(keys, out).ok());
  ExpectEqual(out[0], served);
});

const Test kRefused("bad gradients, keys and shapes are rejected", [] {
  const auto replica = MakeReplica(2, 1.0, NonFinitePolicy::kRaise);
  const auto keys = Keys(2);
  Expect(replica->Insert(keys, Rows(4, 1.0F)).ok());
  const std::vector<float> bad = {1, 1, 1, NAN};
  Expect(replica->Step(keys, bad).status().code() == Code::kNonFinite);
  std::vector<float> out(4);
  Expect(replica->Pull(keys, out).ok());
  Expect(out == Rows(4, 1.0F), "nothing was applied");
  Expect(replica->Step(keys, Rows(3, 1.0F)).status().code() == Code::kShapeMismatch);
  Expect(replica->Step(std::vector<Key>{5}, Rows(2, 1.0F)).status().code() == Code::kNotFound);
  const auto lenient = MakeReplica(2);
  Expect(lenient->Insert(keys, Rows(4, 1.0F)).ok());
  ExpectEqual(lenient->Step(keys, bad).value().rejected_non_finite, std::uint64_t{1});
  SparseSpec other;
  other.name = "rows";
  other.dim = 1;
  other.optimizer.kind = OptimizerKind::kAdam;
  Expect(!ReplicaTable::Create(other).ok());
});

const Test kThreads("nothing is lost between training threads and one that exchanges", [] {
  constexpr std::size_t kNum = 200;
  constexpr int kSteps = 300;
  const auto replica = MakeReplica(5);
  const auto keys = Keys(kNum);
  Expect(replica->Insert(keys, Rows(kNum * 5, 0.0F)).ok());
  std::map<Key, float> served;
  std::atomic<int> running = 2;
  std::vector<std::jthread> trainers;
  for (int t = 0; t < 2; ++t) {
    trainers.emplace_back([&] {
      for (int step = 0; step < kSteps; ++step) {
        Expect(replica->Step(keys, Rows(kNum * 5, 1.0F)).ok());
      }
      --running;
    });
  }
  std::vector<float> rows(kNum * 5);
  while (running > 0) {
    for (const auto& [key, delta] : TakeAll({replica, ReplicaPart::kStepped, 2}, 5, 64)) {
      served[key] += delta;
    }
    for (std::size_t i = 0; i < kNum; ++i) std::fill_n(&rows[i * 5], 5, served[keys[i]]);
    Expect(replica->TakeOver(keys, rows, false).ok());
  }
  trainers.clear();
  for (const auto& [key, delta] : TakeAll({replica, ReplicaPart::kUnsent, 1}, 5, 64)) {
    served[key] += delta;
  }
  for (const Key key : keys) ExpectNear(served[key], -2.0 * kSteps, 1e-2);
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
