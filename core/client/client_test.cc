// The client with real servers, compared with LocalStore wherever both can do the same.
#include "client/client.h"

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server/server.h"
#include "store/local_store.h"
#include "testing/check.h"
#include "testing/test_fleet.h"

namespace sparsefleet::testing {
namespace {

constexpr double kTimeout_s = 60;

SparseSpec Ads(std::uint32_t dim = 3) {
  SparseSpec spec;
  spec.name = "ads";
  spec.dim = dim;
  spec.seed = 9;
  spec.initializer = {InitializerKind::kUniform, -1.0, 1.0};
  spec.optimizer.kind = OptimizerKind::kAdagrad;
  spec.optimizer.learning_rate = 0.5;
  spec.eviction.min_count = 2;
  spec.track_dirty = true;
  return spec;
}

DenseSpec Tower(std::uint64_t size, std::uint64_t min_block_size = 1) {
  DenseSpec spec;
  spec.name = "tower";
  spec.size = size;
  spec.optimizer.kind = OptimizerKind::kAdam;
  spec.optimizer.learning_rate = 0.1;
  spec.min_block_size = min_block_size;
  return spec;
}

std::vector<Key> RandomKeys(std::mt19937_64& generator, std::size_t count, std::uint64_t range) {
  std::vector<Key> keys(count);
  for (auto& key : keys) key = generator() % range;
  return keys;
}

std::vector<float> RandomValues(std::mt19937_64& generator, std::size_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (auto& value : values) value = normal(generator);
  return values;
}

std::vector<float> PullRows(Store& store, std::span<const Key> keys, std::size_t dim,
                            PullMode mode = PullMode::kTrain) {
  std::vector<float> out(keys.size() * dim);
  PullSection section{"ads", keys, out, false, 0};
  RequireOk(store.Pull({&section, 1}, mode, 1, kTimeout_s));
  return out;
}

std::vector<float> PullDense(Store& store, std::uint64_t offset, std::size_t count) {
  std::vector<float> out(count);
  PullSection section{"tower", {}, out, true, offset};
  RequireOk(store.Pull({&section, 1}, PullMode::kTrain, 1, kTimeout_s));
  return out;
}

using Rows = std::map<Key, std::vector<float>>;

// All rows of a cut by key: values, then state, then counters.
Rows RowsOf(Store& store, const TableInfo& info, bool only_dirty, std::size_t chunk) {
  auto cut = RequireOk(store.OpenCut("ads", only_dirty, true, kTimeout_s));
  Rows rows;
  RowBatch batch;
  while (RequireOk(cut->Next(chunk, batch))) {
    Require(batch.keys.size() <= chunk && !batch.keys.empty());
    for (std::size_t i = 0; i < batch.keys.size(); ++i) {
      auto& row = rows[batch.keys[i]];
      const auto add = [&](const auto& column, std::size_t width) {
        row.insert(row.end(), column.begin() + static_cast<std::ptrdiff_t>(i * width),
                   column.begin() + static_cast<std::ptrdiff_t>((i + 1) * width));
      };
      add(batch.values, info.dim);
      add(batch.state, info.state_dim);
      add(batch.counters, info.counter_dim);
    }
  }
  Expect(!RequireOk(cut->Next(chunk, batch)) && batch.keys.empty());
  return rows;
}

// One step of a random history, applied to both stores.
void RandomStep(std::mt19937_64& generator, Store& a, Store& b, std::uint64_t dense_size) {
  const auto keys = RandomKeys(generator, generator() % 200, 300);
  const auto gradients = RandomValues(generator, keys.size() * 3);
  const auto dense = RandomValues(generator, dense_size);
  PushSection sections[2] = {{"ads", keys, gradients, false, false, generator() % 4 == 0},
                             {"tower", {}, dense, true, false, generator() % 4 == 0}};
  const std::size_t used = 1 + generator() % 2;
  const auto push = [&](Store& store) {
    return RequireOk(store.Push(std::span(sections).first(used), 1, kTimeout_s));
  };
  Expect(push(a) == push(b), "push results");
  const auto pulled = RandomKeys(generator, generator() % 200, 400);
  const auto mode = static_cast<PullMode>(generator() % 3);
  Expect(PullRows(a, pulled, 3, mode) == PullRows(b, pulled, 3, mode), "pulled rows");
  const std::uint64_t offset = generator() % (dense_size + 1);
  const std::size_t count = generator() % (dense_size - offset + 1);
  Expect(PullDense(a, offset, count) == PullDense(b, offset, count), "pulled elements");
  if (generator() % 8 == 0) {
    ExpectEqual(RequireOk(a.Shrink("ads", 1, kTimeout_s)),
                RequireOk(b.Shrink("ads", 1, kTimeout_s)));
  }
  if (generator() % 4 == 0) {
    const auto erased = RandomKeys(generator, 20, 300);
    ExpectEqual(RequireOk(a.Erase("ads", erased, kTimeout_s)),
                RequireOk(b.Erase("ads", erased, kTimeout_s)));
  }
}

void Parity(std::uint32_t num_servers, TransportKind kind, std::uint64_t min_block_size) {
  Fleet fleet(num_servers, kind);
  auto client = fleet.NewClient();
  LocalStore local;
  std::mt19937_64 generator(num_servers);
  const std::uint64_t dense_size = 101;
  for (Store* store : {static_cast<Store*>(client.get()), static_cast<Store*>(&local)}) {
    RequireOk(store->Define(Ads(), kTimeout_s));
    RequireOk(store->Define(Tower(dense_size, min_block_size), kTimeout_s));
  }
  for (int i = 0; i < 60; ++i) RandomStep(generator, *client, local, dense_size);
  for (const char* table : {"ads", "tower"}) {
    ExpectEqual(RequireOk(client->Version(table, kTimeout_s)),
                RequireOk(local.Version(table, kTimeout_s)));
    const auto ours = RequireOk(client->Info(table, kTimeout_s));
    const auto theirs = RequireOk(local.Info(table, kTimeout_s));
    ExpectEqual(ours.size, theirs.size);
    ExpectEqual(ours.state_dim, theirs.state_dim);
    ExpectEqual(ours.counter_dim, theirs.counter_dim);
  }
  const auto info = RequireOk(client->Info("ads", kTimeout_s));
  Expect(RowsOf(*client, info, true, 7) == RowsOf(local, info, true, 1000), "dirty rows");
  ExpectEqual(RowsOf(*client, info, true, 7).size(), 0u);
  Expect(RowsOf(*client, info, false, 7) == RowsOf(local, info, false, 1000), "all rows");
}

const Test kParity("a random history gives the rows that LocalStore gives", [] {
  Parity(1, TransportKind::kTls, 1);
  Parity(1, TransportKind::kPlain, 1);
  Parity(3, TransportKind::kTls, 1);
  Parity(3, TransportKind::kPlain, 50);
  Parity(4, TransportKind::kPlain, 1000);
});

const Test kSecondClient("a table is used by a client that did not define it", [] {
  Fleet fleet(2);
  RequireOk(fleet.NewClient()->Define(Ads(), kTimeout_s));
  auto client = fleet.NewClient();
  const std::vector<Key> keys = {1, 2, 3};
  ExpectEqual(PullRows(*client, keys, 3).size(), 9u);
  ExpectEqual(RequireOk(client->Info("ads", kTimeout_s)).size, 3u);
});

const Test kBadInput("bad input is a typed error and leaves the tables unchanged", [] {
  Fleet fleet(2);
  auto client = fleet.NewClient();
  SparseSpec strict = Ads();
  strict.name = "strict";
  strict.non_finite = NonFinitePolicy::kRaise;
  RequireOk(client->Define(Ads(), kTimeout_s));
  RequireOk(client->Define(strict, kTimeout_s));
  RequireOk(client->Define(Tower(10), kTimeout_s));
  const std::vector<Key> keys = {1, 2};
  std::vector<float> values(6, 1.0f);
  const auto push = [&](PushSection section) {
    return client->Push({&section, 1}, 1, kTimeout_s).status();
  };
  ExpectCode(push({"nobody", keys, values, false, false, false}), Code::kUnknownTable);
  ExpectCode(push({std::string(300, 'x'), keys, values, false, false, false}),
             Code::kInvalidArgument);
  ExpectCode(push({"tower", keys, values, false, false, false}), Code::kInvalidArgument);
  ExpectCode(push({"ads", keys, std::span(values).first(5), false, false, false}),
             Code::kShapeMismatch);
  ExpectCode(push({"tower", {}, values, true, false, false}), Code::kShapeMismatch);
  values[4] = std::numeric_limits<float>::quiet_NaN();
  ExpectCode(push({"strict", keys, values, false, false, false}), Code::kNonFinite);
  ExpectEqual(RequireOk(client->Version("strict", kTimeout_s)), 0u);
  PushSection lenient{"ads", keys, values, false, false, false};
  const auto result = RequireOk(client->Push({&lenient, 1}, 1, kTimeout_s));
  ExpectEqual(result.applied, 1u);
  ExpectEqual(result.rejected_non_finite, 1u);

  float out[3];
  PullSection wide{"tower", {}, out, true, 8};
  ExpectCode(client->Pull({&wide, 1}, PullMode::kTrain, 1, kTimeout_s), Code::kShapeMismatch);
  SparseSpec other = Ads(4);
  ExpectCode(client->Define(other, kTimeout_s), Code::kTableConflict);
  other.dim = 0;
  ExpectCode(client->Define(other, kTimeout_s), Code::kInvalidArgument);
});

const Test kDensePoison("a bad dense gradient is skipped by all servers and counted once", [] {
  Fleet fleet(3);
  auto client = fleet.NewClient();
  DenseSpec spec = Tower(30);
  spec.non_finite = NonFinitePolicy::kRejectRow;
  RequireOk(client->Define(spec, kTimeout_s));
  std::vector<float> gradient(30, 1.0f);
  gradient[29] = std::numeric_limits<float>::infinity();
  PushSection section{"tower", {}, gradient, true, false, false};
  const auto result = RequireOk(client->Push({&section, 1}, 1, kTimeout_s));
  ExpectEqual(result.applied, 0u);
  ExpectEqual(result.rejected_non_finite, 1u);
  Expect(PullDense(*client, 0, 30) == std::vector<float>(30, 0.0f));
});

const Test kWriteDense("written dense values are read back, and another size conflicts", [] {
  Fleet fleet(3);
  auto client = fleet.NewClient();
  RequireOk(client->Define(Tower(100), kTimeout_s));
  std::mt19937_64 generator(1);
  const auto values = RandomValues(generator, 100);
  RequireOk(client->WriteDense("tower", values, kTimeout_s));
  Expect(PullDense(*client, 0, 100) == values);
  Expect(PullDense(*client, 31, 40) == std::vector(values.begin() + 31, values.begin() + 71));
  ExpectCode(client->WriteDense("tower", std::span(values).first(99), kTimeout_s),
             Code::kShapeMismatch);
});

const Test kImport("imported rows come back unchanged in a cut, over small frames", [] {
  Fleet fleet(2, TransportKind::kPlain, 4096);
  auto client = fleet.NewClient();
  RequireOk(client->Define(Ads(), kTimeout_s));
  const auto info = RequireOk(client->Info("ads", kTimeout_s));
  std::mt19937_64 generator(2);
  RowBatch rows;
  Rows wanted;
  for (Key key = 0; key < 500; ++key) {
    rows.keys.push_back(key * 7919);
    auto& row = wanted[key * 7919];
    row = RandomValues(generator, info.dim + info.state_dim);
    rows.values.insert(rows.values.end(), row.begin(), row.begin() + info.dim);
    rows.state.insert(rows.state.end(), row.begin() + info.dim, row.end());
    for (std::uint32_t i = 0; i < info.counter_dim; ++i) {
      rows.counters.push_back(static_cast<std::uint32_t>(key));
      row.push_back(static_cast<float>(key));
    }
  }
  RequireOk(client->Import("ads", rows, kTimeout_s));
  Expect(RowsOf(*client, info, false, 100'000) == wanted);
  rows.values.pop_back();
  ExpectCode(client->Import("ads", rows, kTimeout_s), Code::kShapeMismatch);
});

const Test kTooLarge("a pull over the frame limit is kTooLarge and names the setting", [] {
  Fleet fleet(1, TransportKind::kPlain, 100'000);
  auto client = fleet.NewClient();
  RequireOk(client->Define(Ads(100), kTimeout_s));
  std::vector<Key> keys(1000);
  std::vector<float> out(100'000);
  PullSection section{"ads", keys, out, false, 0};
  const Status status = client->Pull({&section, 1}, PullMode::kTrain, 1, kTimeout_s);
  ExpectCode(status, Code::kTooLarge);
  Expect(status.message().find("max_frame_bytes") != std::string::npos, status.message());
});

const Test kLarge("a pull and push of megabytes arrive intact", [] {
  for (const auto kind : {TransportKind::kTls, TransportKind::kPlain}) {
    Fleet fleet(2, kind);
    auto client = fleet.NewClient();
    SparseSpec spec = Ads(64);
    spec.optimizer = {};
    spec.optimizer.learning_rate = 1.0;
    spec.initializer = {};
    RequireOk(client->Define(spec, kTimeout_s));
    std::vector<Key> keys(50'000);
    for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i * 977;
    std::mt19937_64 generator(3);
    auto values = RandomValues(generator, keys.size() * 64);
    PushSection push{"ads", keys, values, false, false, false};
    ExpectEqual(RequireOk(client->Push({&push, 1}, 1, kTimeout_s)).applied, keys.size());
    for (auto& value : values) value = -value;
    Expect(PullRows(*client, keys, 64) == values);
  }
});

const Test kThreads("threads push at once and nothing is lost", [] {
  Fleet fleet(2);
  auto client = fleet.NewClient();
  SparseSpec spec = Ads(1);
  spec.optimizer = {};
  spec.optimizer.learning_rate = 1.0;
  spec.initializer = {};
  RequireOk(client->Define(spec, kTimeout_s));
  const std::vector<Key> keys = {1, 2, 3, 4, 5};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      const std::vector<float> gradients(5, -1.0f);
      PushSection push{"ads", keys, gradients, false, true, false};
      for (int i = 0; i < 50; ++i) {
        if (!client->Push({&push, 1}, 1, kTimeout_s).ok()) return;
        PullRows(*client, keys, 1);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  Expect(PullRows(*client, keys, 1) == std::vector<float>(5, 200.0f));
  ExpectEqual(RequireOk(client->Version("ads", kTimeout_s)), 200u);
});

const Test kWaits("barriers, notes and versions make clients wait for each other", [] {
  Fleet fleet(2);
  auto client = fleet.NewClient();
  auto other = fleet.NewClient();
  RequireOk(client->Define(Ads(), kTimeout_s));
  ExpectCode(client->GetNote("address", false, kTimeout_s).status(), Code::kNotFound);
  std::thread peer([&] {
    Status done = other->WaitVersion("ads", 1, kTimeout_s);
    if (done.ok()) done = other->PutNote("address", "10.0.0.1", kTimeout_s);
    if (done.ok()) done = other->Barrier("epoch", 2, kTimeout_s);
    Expect(done.ok(), done.message());
  });
  // No key of either server: the push still counts.
  PushSection nothing{"ads", {}, {}, false, false, false};
  RequireOk(client->Push({&nothing, 1}, 1, kTimeout_s).status());
  ExpectEqual(RequireOk(client->GetNote("address", true, kTimeout_s)), std::string("10.0.0.1"));
  RequireOk(client->Barrier("epoch", 2, kTimeout_s));
  peer.join();
  RequireOk(client->DeleteNote("address", kTimeout_s));
  ExpectCode(client->GetNote("address", false, kTimeout_s).status(), Code::kNotFound);
  ExpectCode(client->WaitVersion("ads", 5, 0.2), Code::kDeadlineExceeded);
  const Status alone = client->Barrier("epoch", 2, 0.2);
  ExpectCode(alone, Code::kDeadlineExceeded);
  Expect(alone.message().find("1 of 2") != std::string::npos, alone.message());
  ExpectCode(client->PutNote("big", std::string(70'000, 'x'), kTimeout_s), Code::kTooLarge);
  ExpectCode(client->PutNote("", "x", kTimeout_s), Code::kInvalidArgument);
});

const Test kStats("statistics have one map per server, learning rates are set on all", [] {
  Fleet fleet(2);
  auto client = fleet.NewClient();
  RequireOk(client->Define(Ads(), kTimeout_s));
  RequireOk(client->SetLearningRate("ads", 0.125, std::nullopt, kTimeout_s));
  const auto stats = RequireOk(client->Stats(kTimeout_s));
  ExpectEqual(stats.size(), 2u);
  for (const auto& map : stats) ExpectEqual(map.at("table.ads.learning_rate"), 0.125);
  ExpectCode(client->SetLearningRate("ads", -1.0, std::nullopt, kTimeout_s),
             Code::kInvalidArgument);
});

const Test kCutGivenUp("a clearing cut abandoned at the last server leaves all rows dirty", [] {
  Fleet fleet(2);
  auto client = fleet.NewClient();
  RequireOk(client->Define(Ads(), kTimeout_s));
  std::mt19937_64 generator(1);
  PullRows(*client, RandomKeys(generator, 200, 1000), 3);
  const auto info = RequireOk(client->Info("ads", kTimeout_s));
  std::size_t rows = 0;
  {
    auto cut = RequireOk(client->OpenCut("ads", true, true, kTimeout_s));
    RowBatch batch;
    while (rows < info.size && RequireOk(cut->Next(3, batch))) rows += batch.keys.size();
    ExpectEqual(rows, info.size);
  }
  ExpectEqual(RowsOf(*client, info, true, 50).size(), rows);
  ExpectEqual(RowsOf(*client, info, true, 50).size(), 0u);
});

const Test kCutUntracked("dirty rows of a table that does not track them are refused", [] {
  Fleet fleet(2);
  auto client = fleet.NewClient();
  SparseSpec spec = Ads();
  spec.track_dirty = false;
  RequireOk(client->Define(spec, kTimeout_s));
  ExpectCode(client->OpenCut("ads", true, false, kTimeout_s).status(), Code::kInvalidArgument);
  RequireOk(client->OpenCut("ads", false, false, kTimeout_s).status());
});

const Test kCutOutlives("a cut keeps working after its client is destroyed", [] {
  Fleet fleet(2);
  auto client = fleet.NewClient();
  RequireOk(client->Define(Ads(), kTimeout_s));
  const std::vector<Key> keys = {1, 2, 3, 4, 5, 6, 7, 8};
  PullRows(*client, keys, 3);
  auto cut = RequireOk(client->OpenCut("ads", false, false, kTimeout_s));
  client.reset();
  RowBatch batch;
  std::size_t rows = 0;
  while (RequireOk(cut->Next(3, batch))) rows += batch.keys.size();
  ExpectEqual(rows, keys.size());
});

const Test kMiscounted("a client that expects another number of servers is refused", [] {
  Fleet fleet(2);
  auto options = fleet.Options();
  std::swap(options.endpoints[0], options.endpoints[1]);
  ExpectCode(Client::Connect(options).status(), Code::kInvalidArgument);
  options.endpoints.pop_back();
  ExpectCode(Client::Connect(options).status(), Code::kInvalidArgument);
});

const Test kOptions("errors for invalid options name them", [] {
  Fleet fleet(1);
  auto options = fleet.Options();
  options.endpoints.clear();
  ExpectCode(Client::Connect(options).status(), Code::kInvalidArgument);
  options = fleet.Options();
  options.try_timeout_s = 0;
  ExpectCode(Client::Connect(options).status(), Code::kInvalidArgument);
  options = fleet.Options();
  options.security.job_key = "short";
  ExpectCode(Client::Connect(options).status(), Code::kInvalidArgument);
});

const Test kShutdown("shutdown reaches every server", [] {
  Fleet fleet(2);
  auto client = fleet.NewClient();
  RequireOk(client->Shutdown(kTimeout_s));
  Expect(fleet.server(0).WaitForShutdownRequest(kTimeout_s));
  Expect(fleet.server(1).WaitForShutdownRequest(kTimeout_s));
});

const Test kStopped("a cleanly stopped server is kPeerLost or kShuttingDown, not a hang", [] {
  Fleet fleet(1);
  auto options = fleet.Options();
  options.heartbeat_interval_s = 0.05;
  options.peer_timeout_s = 0.3;
  auto client = RequireOk(Client::Connect(options));
  RequireOk(client->Define(Ads(), kTimeout_s));
  std::thread stopper([&] { fleet.server(0).Stop(); });
  const Status status = client->Barrier("never", 2, 3600);
  stopper.join();
  Expect(status.code() == Code::kPeerLost || status.code() == Code::kShuttingDown,
         CodeName(status.code()) + ": " + status.message());
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
