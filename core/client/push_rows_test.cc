// Rows returned by a push, alone or as part of a round.
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "server/server.h"
#include "store/local_store.h"
#include "testing/check.h"
#include "testing/test_fleet.h"

namespace sparsefleet::testing {
namespace {

constexpr double kTimeout_s = 60;
constexpr std::uint32_t kDim = 3;  // odd, so that sections end between multiples of 8
constexpr std::uint64_t kTower = 1001;

void DefineTables(Store& store) {
  SparseSpec ads;
  ads.name = "ads";
  ads.dim = kDim;
  ads.seed = 4;
  ads.initializer = {InitializerKind::kUniform, -1.0, 1.0};
  ads.optimizer.kind = OptimizerKind::kAdagrad;
  ads.track_step = true;
  ads.track_count = true;
  RequireOk(store.Define(ads, kTimeout_s));
  DenseSpec tower;
  tower.name = "tower";
  tower.size = kTower;
  tower.min_block_size = 100;
  RequireOk(store.Define(tower, kTimeout_s));
}

std::vector<Key> KeysFrom(Key first, std::size_t count) {
  std::vector<Key> keys(count);
  std::iota(keys.begin(), keys.end(), first);
  return keys;
}

// A push to some keys and the tower that requests the rows of others, half of them new, twice.
struct Example {
  explicit Example(Key first = 0, std::size_t count = 40)
      : pushed(KeysFrom(first, count)),
        gradients(count * kDim, 0.5F),
        tower(kTower, 0.25F),
        wanted(KeysFrom(first + count / 2, count)),
        again(KeysFrom(first, 7)),
        rows(wanted.size() * kDim),
        rows_again(again.size() * kDim),
        values(kTower) {}

  std::vector<PushSection> Sections() {
    PushSection wants{"ads", wanted, {}};
    wants.out = rows;
    PushSection dense{"tower", {}, tower, true};
    dense.out = values;
    PushSection more{"ads", again, {}};
    more.out = rows_again;
    return {wants, {"ads", pushed, gradients}, dense, more};
  }
  void ExpectRead(Store& store) const {
    std::vector<float> read(rows.size()), read_again(rows_again.size()), read_values(kTower);
    const PullSection sections[] = {
        {"ads", wanted, read}, {"ads", again, read_again}, {"tower", {}, read_values, true}};
    RequireOk(store.Pull(sections, PullMode::kInferZeros, 1, kTimeout_s));
    Expect(read == rows && read_again == rows_again, "rows");
    Expect(read_values == values, "dense values");
  }

  std::vector<Key> pushed;
  std::vector<float> gradients;
  std::vector<float> tower;
  std::vector<Key> wanted;
  std::vector<Key> again;
  std::vector<float> rows;
  std::vector<float> rows_again;
  std::vector<float> values;
};

// The counters of all rows, by key.
std::map<Key, std::vector<std::uint32_t>> AllCounters(Store& store) {
  auto cut = RequireOk(store.OpenCut("ads", false, false, kTimeout_s));
  std::map<Key, std::vector<std::uint32_t>> all;
  RowBatch rows;
  while (RequireOk(cut->Next(1000, rows))) {
    const std::size_t width = rows.counters.size() / rows.keys.size();
    for (std::size_t i = 0; i < rows.keys.size(); ++i) {
      const auto* first = rows.counters.data() + i * width;
      all[rows.keys[i]] = {first, first + width};
    }
  }
  return all;
}

const Test kAfterPush("requested rows equal those of a training pull after the push", [] {
  for (const std::uint32_t servers : {1u, 2u, 3u}) {
    const Fleet fleet(servers, TransportKind::kPlain);
    const auto client = fleet.NewClient();
    LocalStore local, pulling;
    Example there, here, apart;
    for (Store* store : {static_cast<Store*>(client.get()), static_cast<Store*>(&local),
                         static_cast<Store*>(&pulling)}) {
      DefineTables(*store);
    }
    ExpectEqual(RequireOk(client->Push(there.Sections(), 5, kTimeout_s)).applied, 40u + kTower);
    RequireOk(local.Push(here.Sections(), 5, kTimeout_s));
    const PushSection alone[] = {{"ads", apart.pushed, apart.gradients},
                                 {"tower", {}, apart.tower, true}};
    RequireOk(pulling.Push(alone, 5, kTimeout_s));
    const PullSection pulls[] = {{"ads", apart.wanted, apart.rows},
                                 {"ads", apart.again, apart.rows_again}};
    RequireOk(pulling.Pull(pulls, PullMode::kTrain, 5, kTimeout_s));
    Expect(there.rows == apart.rows && there.rows_again == apart.rows_again, "from servers");
    Expect(here.rows == apart.rows && here.rows_again == apart.rows_again, "from this process");
    there.ExpectRead(*client);
    Expect(AllCounters(local) == AllCounters(pulling), "new rows");
    ExpectEqual(fleet.Requests("pull"), static_cast<double>(servers));  // of ExpectRead
  }
});

const Test kAfterRound("every member of a round gets its rows as they are after the round", [] {
  const Fleet fleet(2, TransportKind::kPlain);
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<Example> examples;
  for (Key rank = 0; rank < 3; ++rank) {
    clients.push_back(fleet.NewClient());
    examples.emplace_back(rank * 10);
  }
  DefineTables(*clients[0]);
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        for (std::uint64_t round = 1; round <= 3; ++round) {
          const auto sections = examples[rank].Sections();
          ExpectCode(
              clients[rank]->PushRound({"g", rank, 3}, round, sections, round, kTimeout_s).status(),
              Code::kOk);
        }
      });
    }
  }
  for (const Example& example : examples) example.ExpectRead(*clients[0]);
});

const Test kTooMuch("rows that do not fit into the frame of the push are pulled after it", [] {
  const Fleet fleet(2, TransportKind::kPlain, 64 << 10);
  const auto client = fleet.NewClient();
  DefineTables(*client);
  Example example(0, 5000);  // per server 50 KB of gradients, 20 KB of requested keys
  RequireOk(client->Push(example.Sections(), 1, kTimeout_s));
  ExpectEqual(fleet.Requests("pull"), 2.0);
  example.ExpectRead(*client);
  RequireOk(client->PushRound({"g", 0, 1}, 1, example.Sections(), 2, kTimeout_s));
  example.ExpectRead(*client);
  ExpectEqual(RequireOk(client->Version("ads", kTimeout_s)), 2u);
});

const Test kTooMany("rows of more sections than a push may have are pulled after it", [] {
  const Fleet fleet(2, TransportKind::kPlain);
  const auto client = fleet.NewClient();
  DefineTables(*client);
  Example example;
  auto sections = example.Sections();
  const std::vector<Key> key = {0};
  constexpr std::size_t kMany = 4096;  // fits a pull, but not a push with others
  std::vector<float> rows(kMany * kDim);
  for (std::size_t i = sections.size(); i < kMany; ++i) {
    PushSection& wanted = sections.emplace_back();
    wanted.table = "ads";
    wanted.keys = key;
    wanted.out = std::span(rows).subspan(i * kDim, kDim);
  }
  sections.push_back(sections.back());
  RequireOk(client->Push(sections, 1, kTimeout_s));
  ExpectEqual(RequireOk(client->Version("ads", kTimeout_s)), 1u);
  example.ExpectRead(*client);
});

const Test kBadWants("room for the wrong number of rows is rejected, and nothing is applied", [] {
  const Fleet fleet(2, TransportKind::kPlain);
  const auto client = fleet.NewClient();
  LocalStore local;
  for (Store* store : {static_cast<Store*>(client.get()), static_cast<Store*>(&local)}) {
    DefineTables(*store);
    Example example;
    auto sections = example.Sections();
    sections[0].out = sections[0].out.first(5);
    ExpectCode(store->Push(sections, 1, kTimeout_s).status(), Code::kShapeMismatch);
    ExpectCode(store->PushRound({"g", 0, 1}, 1, sections, 1, kTimeout_s).status(),
               Code::kShapeMismatch);
    sections[0].out = example.rows;
    sections[0].table = "nobody";
    ExpectCode(store->Push(sections, 1, kTimeout_s).status(), Code::kUnknownTable);
    ExpectEqual(RequireOk(store->Version("ads", kTimeout_s)), 0u);
  }
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
