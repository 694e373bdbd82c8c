// Servers that are killed and restarted: no acknowledged change is lost or applied twice.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "store/local_store.h"
#include "testing/check.h"
#include "testing/durable_process.h"
#include "testing/faulty_files.h"

namespace sparsefleet::testing {
namespace {

constexpr double kTimeout = 60;

std::unique_ptr<Client> ConnectTo(const DurableProcess& server, const std::string& name,
                                  const std::string& session = "",
                                  WireDtype dtype = WireDtype::kFloat32) {
  ClientOptions options;
  options.endpoints = {server.endpoint()};
  // Shared memory would move float32.
  const bool is_narrow = dtype == WireDtype::kBf16;
  options.security = TestSecurity(is_narrow ? TransportKind::kTls : TransportKind::kAuto);
  options.wire_dtype = dtype;
  options.name = name;
  options.session = session;
  options.failover_wait_s = 60;
  return RequireOk(Client::Connect(std::move(options)));
}

SparseSpec LedgerSpec(const std::string& name, std::uint32_t dim) {
  SparseSpec spec;
  spec.name = name;
  spec.dim = dim;
  spec.optimizer.kind = OptimizerKind::kSgd;
  spec.optimizer.learning_rate = 1.0;
  return spec;
}

DenseSpec DenseLedger(std::uint64_t size) {
  DenseSpec spec;
  spec.name = "dense";
  spec.size = size;
  spec.optimizer.kind = OptimizerKind::kSgd;
  spec.optimizer.learning_rate = 1.0;
  return spec;
}

// Kills and restarts the server at random moments until it is stopped. Kills between which nothing
// was done become rarer, or clients would never finish a call on a slow machine.
class Killer {
 public:
  Killer(DurableProcess& server, unsigned seed, int longest_ms, const std::atomic<int>& done)
      : thread_([&server, seed, longest_ms, &done, this](const std::stop_token& stop) {
          std::mt19937 random(seed);
          int longest = longest_ms;
          while (!stop.stop_requested()) {
            const int before = done;
            std::this_thread::sleep_for(std::chrono::milliseconds(random() % longest));
            longest =
                done == before ? std::min(2 * longest, 10'000) : std::max(longest / 2, longest_ms);
            server.Restart();
            ++kills;
          }
        }) {}
  std::atomic<int> kills = 0;

 private:
  std::jthread thread_;
};

// Each push adds 1 to some rows and to all elements of the dense table.
void CheckLedger(Durability durability, std::uint64_t snapshot_bytes, int kills,
                 WireDtype dtype = WireDtype::kFloat32) {
  const TemporaryDirectory place;
  DurableProcess server(place.path(), durability, snapshot_bytes);
  constexpr std::size_t kKeys = 500;
  constexpr std::size_t kDim = 3;
  constexpr std::size_t kDense = 1000;
  {
    auto client = ConnectTo(server, "definer");
    RequireOk(client->Define(LedgerSpec("t", kDim), kTimeout));
    RequireOk(client->Define(DenseLedger(kDense), kTimeout));
  }
  std::vector<std::atomic<int>> wanted(kKeys);
  std::atomic<int> pushes = 0;
  std::atomic<bool> is_over = false;
  {
    std::vector<std::jthread> workers;
    for (unsigned w = 0; w < 2; ++w) {
      workers.emplace_back([&, w] {
        auto client = ConnectTo(server, "worker-" + std::to_string(w), "", dtype);
        std::mt19937 random(w + 1);
        const std::vector<float> dense(kDense, -1.0F);
        while (!is_over) {
          std::vector<Key> keys;
          for (std::size_t key = random() % 7; key < kKeys; key += 1 + random() % 20) {
            keys.push_back(key);
          }
          const std::vector<float> gradients(keys.size() * kDim, -1.0F);
          PushSection sparse;
          sparse.table = "t";
          sparse.keys = keys;
          sparse.gradients = gradients;
          PushSection whole;
          whole.table = "dense";
          whole.dense = true;
          whole.gradients = dense;
          std::vector<float> rows(keys.size() * kDim);
          PushSection next;
          next.table = "t";
          next.keys = keys;
          next.out = rows;
          const PushSection sections[] = {sparse, whole, next};
          auto result = client->Push(sections, 1, kTimeout);
          Require(result.ok(), result.status().message());
          for (const Key key : keys) ++wanted[key];
          for (const float value : rows)
            Expect(value >= 1.0F, "rows read after the push do not include it");
          ++pushes;
        }
      });
    }
    Killer killer(server, 7, 150, pushes);
    while (killer.kills < kills) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    is_over = true;
  }
  auto client = ConnectTo(server, "reader");
  std::vector<Key> keys(kKeys);
  std::iota(keys.begin(), keys.end(), Key{0});
  std::vector<float> rows(kKeys * kDim);
  std::vector<float> dense(kDense);
  const PullSection pulled[] = {{"t", keys, rows}, {"dense", {}, dense, true}};
  RequireOk(client->Pull(pulled, PullMode::kInferZeros, 1, kTimeout));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    ExpectEqual(rows[i], static_cast<float>(wanted[i / kDim].load()));
  }
  for (const float value : dense) ExpectEqual(value, static_cast<float>(pushes.load()));
  ExpectEqual(RequireOk(client->Version("t", kTimeout)), static_cast<std::uint64_t>(pushes.load()));
  Expect(pushes > 10, "hardly any push was made");
}

const Test kProcess("pushes are applied exactly once across kills of the server: process",
                    [] { CheckLedger(Durability::kProcess, 1ull << 30, 12); });
const Test kProcessSnapshots(
    "pushes are applied exactly once across kills, with constant snapshots",
    [] { CheckLedger(Durability::kProcess, 50'000, 12); });
const Test kNarrow("pushes in 16 bits are applied exactly once across kills of the server",
                   [] { CheckLedger(Durability::kProcess, 50'000, 6, WireDtype::kBf16); });
const Test kDisk("pushes are applied exactly once across kills of the server: disk",
                 [] { CheckLedger(Durability::kDisk, 300'000, 6); });

// Rounds of two workers with adagrad and random gradients; returns the final rows.
std::vector<float> TrainInRounds(Store& first, Store& second, int rounds, std::atomic<int>& done,
                                 int pause_ms = 0) {
  constexpr std::size_t kKeys = 40;
  SparseSpec spec = LedgerSpec("t", 4);
  spec.optimizer.kind = OptimizerKind::kAdagrad;
  spec.optimizer.learning_rate = 0.1;
  spec.initializer = {InitializerKind::kUniform, -0.1, 0.1};
  RequireOk(first.Define(spec, kTimeout));
  const auto work = [&](Store& store, std::uint32_t rank) {
    std::mt19937 random(rank + 11);
    std::uniform_real_distribution<float> draw(-1, 1);
    const RoundMember member{"g", rank, 2};
    for (int round = 1; round <= rounds; ++round) {
      std::vector<Key> keys;
      for (Key key = random() % 3; key < kKeys; key += 1 + random() % 4) keys.push_back(key);
      std::vector<float> gradients(keys.size() * 4);
      for (float& value : gradients) value = draw(random);
      PushSection section;
      section.table = "t";
      section.keys = keys;
      section.gradients = gradients;
      auto result = store.PushRound(member, static_cast<std::uint64_t>(round), {&section, 1},
                                    static_cast<std::uint64_t>(round), kTimeout);
      Require(result.ok(), result.status().message());
      ++done;
      std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
      if (round % 5 == 0) RequireOk(store.Barrier("b" + std::to_string(round), 2, kTimeout));
    }
    RequireOk(store.LeaveGroup(member, kTimeout));
  };
  {
    std::jthread other([&] { work(second, 1); });
    work(first, 0);
  }
  std::vector<Key> keys(kKeys);
  std::iota(keys.begin(), keys.end(), Key{0});
  std::vector<float> rows(kKeys * 4);
  const PullSection pulled{"t", keys, rows};
  RequireOk(first.Pull({&pulled, 1}, PullMode::kInferZeros, 1, kTimeout));
  return rows;
}

const Test kRounds("rounds across kills of the server give the same bits as without kills", [] {
  LocalStore local;
  std::atomic<int> done = 0;
  const auto wanted = TrainInRounds(local, local, 60, done);
  const TemporaryDirectory place;
  DurableProcess server(place.path(), Durability::kProcess, 20'000);
  auto first = ConnectTo(server, "worker-0");
  auto second = ConnectTo(server, "worker-1");
  std::vector<float> found;
  int kills = 0;
  {
    Killer killer(server, 3, 60, done);
    found = TrainInRounds(*first, *second, 60, done, 10);  // with time for kills in between
    kills = killer.kills;
  }
  Expect(found == wanted, "the bits differ");
  Expect(kills > 2, "the server was hardly ever killed");
});

const Test kNarrowReplay("a push in 16 bits is replayed with the bits that were applied", [] {
  for (const bool as_round : {false, true}) {
    const TemporaryDirectory place;
    DurableProcess server(place.path(), Durability::kProcess);
    auto client = ConnectTo(server, "worker-0", "", WireDtype::kBf16);
    RequireOk(client->Define(LedgerSpec("t", 3), kTimeout));
    std::vector<Key> keys(50);
    std::iota(keys.begin(), keys.end(), Key{0});
    std::vector<float> gradients(keys.size() * 3);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      gradients[i] = 0.1F + 0.01F * static_cast<float>(i);
    }
    PushSection section;
    section.table = "t";
    section.keys = keys;
    section.gradients = gradients;
    const RoundMember member{"g", 0, 1};
    for (std::uint64_t step = 1; step <= 5; ++step) {
      auto result = as_round ? client->PushRound(member, step, {&section, 1}, step, kTimeout)
                             : client->Push({&section, 1}, step, kTimeout);
      RequireOk(result.status());
    }
    const auto read = [&] {
      std::vector<float> rows(gradients.size());
      const PullSection pulled{"t", keys, rows};
      auto reader = ConnectTo(server, "reader");
      RequireOk(reader->Pull({&pulled, 1}, PullMode::kInferZeros, 1, kTimeout));
      return rows;
    };
    const auto before = read();
    server.Restart();
    Expect(read() == before, "the bits differ");
    Expect(before[0] != -0.5F, "nothing was rounded");
  }
});

const Test kOtherState("all other state of a server is recovered, from log and snapshot", [] {
  for (const bool with_snapshot : {false, true}) {
    const TemporaryDirectory place;
    DurableProcess server(place.path(), Durability::kProcess, with_snapshot ? 1 : 1ull << 30);
    auto client = ConnectTo(server, "worker-0");
    SparseSpec spec = LedgerSpec("t", 2);
    spec.initializer = {InitializerKind::kConstant, 5.0, 0};
    spec.admission = {AdmissionKind::kCount, 3, 1.0};
    spec.eviction.untouched_steps = 10;
    spec.track_dirty = true;
    RequireOk(client->Define(spec, kTimeout));
    RequireOk(client->Define(DenseLedger(10), kTimeout));
    const std::vector<Key> keys = {1, 2, 3, 4};
    std::vector<float> rows(8);
    const auto pull = [&](std::uint64_t step) {
      const PullSection pulled{"t", keys, rows};
      RequireOk(client->Pull({&pulled, 1}, PullMode::kTrain, step, kTimeout));
    };
    const auto settle = [&] {
      // Long enough for the server to check whether a snapshot is due.
      if (with_snapshot) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
      server.Restart();
    };
    pull(1);
    RequireOk(client->WatchChanges("t", kTimeout));
    RequireOk(client->PutNote("key", "value", kTimeout));
    RequireOk(client->PutNote("gone", "x", kTimeout));
    RequireOk(client->DeleteNote("gone", kTimeout));
    RequireOk(client->SetLearningRate("t", 0.5, 7, kTimeout));
    const std::vector<float> values = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    RequireOk(client->WriteDense("dense", values, kTimeout));
    const RoundMember member{"clocks", 0, 1};
    ExpectEqual(RequireOk(client->AdvanceClock(member, 4, std::nullopt, kTimeout)), 4u);
    settle();
    pull(2);
    Expect(rows == std::vector<float>(8, 0.0F), "admission counts were lost or doubled");
    settle();
    pull(3);
    Expect(rows == std::vector<float>(8, 5.0F), "the third pull creates the rows");
    const std::vector<Key> pushed = {1, 2};
    const std::vector<float> gradients(4, 2.0F);
    PushSection section;
    section.table = "t";
    section.keys = pushed;
    section.gradients = gradients;
    RequireOk(client->Push({&section, 1}, 20, kTimeout));
    settle();
    pull(20);
    Expect(rows == std::vector<float>({4, 4, 4, 4, 5, 5, 5, 5}), "the learning rate was lost");
    ExpectEqual(RequireOk(client->GetNote("key", false, kTimeout)), std::string("value"));
    ExpectEqual(client->GetNote("gone", false, kTimeout).status().code(), Code::kNotFound);
    std::vector<float> dense(10);
    const PullSection whole{"dense", {}, dense, true};
    RequireOk(client->Pull({&whole, 1}, PullMode::kTrain, 1, kTimeout));
    Expect(dense == values);
    ExpectEqual(RequireOk(client->AdvanceClock(member, 6, std::nullopt, kTimeout)), 6u);
    auto changes = RequireOk(client->TakeChanges("t", kTimeout));
    RowBatch batch;
    Expect(RequireOk(changes->Next(100, batch)));
    std::ranges::sort(batch.keys);
    Expect(batch.keys == pushed, "the watch was lost");
    ExpectEqual(RequireOk(client->Shrink("t", 20, kTimeout)), 2u);
    settle();
    auto info = RequireOk(client->Info("t", kTimeout));
    ExpectEqual(info.size, 2u);
  }
});

const Test kMarks("a process that takes over a session learns what was applied and adds nothing",
                  [] {
                    const TemporaryDirectory place;
                    DurableProcess server(place.path(), Durability::kProcess);
                    const std::vector<Key> keys = {5};
                    const std::vector<float> gradient = {-1.0F};
                    const auto push = [&](Client& client, DataMark mark) {
                      PushSection section;
                      section.table = "t";
                      section.keys = keys;
                      section.gradients = gradient;
                      PushSection data;
                      data.marks = {&mark, 1};
                      const PushSection sections[] = {section, data};
                      return RequireOk(client.Push(sections, 1, kTimeout)).applied;
                    };
                    const auto value = [&](Client& client) {
                      float row = 0;
                      const PullSection pulled{"t", keys, {&row, 1}};
                      RequireOk(client.Pull({&pulled, 1}, PullMode::kInferZeros, 1, kTimeout));
                      return row;
                    };
                    {
                      auto before = ConnectTo(server, "worker-3", "job/worker-3");
                      RequireOk(before->Define(LedgerSpec("t", 1), kTimeout));
                      ExpectEqual(push(*before, {1, 0, 10, 11}), 1u);
                      ExpectEqual(push(*before, {1, 0, 11, 12}), 1u);
                      ExpectEqual(push(*before, {2, 0, 4, 5}), 1u);
                      server.Restart();
                      ExpectEqual(push(*before, {1, 0, 11, 12}), 0u);
                      // The next process starts while this one still exists, as if this one had
                      // been killed.
                      auto after = ConnectTo(server, "worker-3", "job/worker-3");
                      auto applied = RequireOk(after->AppliedData(kTimeout));
                      Expect(applied.size() == 1 &&
                             applied[0] == std::vector<DataMark>({{1, 0, 10, 12}, {2, 0, 4, 5}}));
                      ExpectEqual(push(*after, {1, 0, 11, 12}), 0u);
                      ExpectEqual(push(*after, {1, 1, 0, 1}), 1u);
                      ExpectEqual(value(*after), 4.0F);
                    }
                  });

const Test kLocked("a running server keeps others out of its directory", [] {
  const TemporaryDirectory place;
  DurableProcess server(place.path(), Durability::kProcess);
  JournalOptions options;
  options.durability = Durability::kProcess;
  options.directory = place.path();
  options.lock_wait_s = 0;
  ExpectEqual(Journal::Open(std::move(options)).status().code(), Code::kIo);
});

// A server with a disk that can be full, and one key to which each push adds 1.
struct FullDisk {
  explicit FullDisk(Durability durability) {
    ServerOptions options;
    options.security = TestSecurity(TransportKind::kPlain);
    options.durability = durability;
    options.log_dir = place.path();
    options.file_calls = &files;
    options.log = [this](int severity, const std::string& text) {
      std::lock_guard lock(mutex);
      if (severity > 0) logged.push_back(text);
    };
    server = RequireOk(Server::Start(std::move(options)));
    RequireOk(Connect("definer", 0)->Define(LedgerSpec("t", 1), kTimeout));
  }
  std::unique_ptr<Client> Connect(const std::string& name, double failover_wait_s) const {
    ClientOptions options;
    options.endpoints = {"127.0.0.1:" + std::to_string(server->port())};
    options.security = TestSecurity(TransportKind::kPlain);
    options.name = name;
    options.try_timeout_s = 0.3;
    options.failover_wait_s = failover_wait_s;
    return RequireOk(Client::Connect(std::move(options)));
  }
  static Result<PushResult> Push(Client& client, double timeout_s = kTimeout) {
    const std::vector<Key> keys = {1};
    const std::vector<float> gradients = {-1.0F};
    PushSection section;
    section.table = "t";
    section.keys = keys;
    section.gradients = gradients;
    return client.Push({&section, 1}, 1, timeout_s);
  }
  static float Read(Client& client) {
    const std::vector<Key> keys = {1};
    std::vector<float> rows(1);
    const PullSection pulled{"t", keys, rows};
    RequireOk(client.Pull({&pulled, 1}, PullMode::kInferZeros, 1, kTimeout));
    return rows[0];
  }
  double Stat(Client& client, const std::string& name) const {
    return RequireOk(client.Stats(kTimeout))[0].at(name);
  }

  const TemporaryDirectory place;
  FaultyFiles files;
  mutable std::mutex mutex;
  std::vector<std::string> logged;
  std::unique_ptr<Server> server;
};

void CheckFullDisk(Durability durability) {
  FullDisk disk(durability);
  auto watcher = disk.Connect("watcher", 0);
  disk.files.FailWritesAfter(10, ENOSPC);
  std::atomic<int> acknowledged = 0;
  {
    std::vector<std::jthread> workers;
    for (int i = 0; i < 3; ++i) {
      workers.emplace_back([&disk, &acknowledged, i] {
        auto client = disk.Connect("worker " + std::to_string(i), kTimeout);
        for (int push = 0; push < 5; ++push) {
          const auto result = FullDisk::Push(*client);
          Require(result.ok(), result.status().message());
          ++acknowledged;
        }
      });
    }
    while (disk.Stat(*watcher, "log.disk_full") == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    // Longer than a try: retries of the held requests and new ones are rejected meanwhile.
    std::this_thread::sleep_for(std::chrono::milliseconds(700));
    ExpectEqual(acknowledged.load(), 0);
    disk.files.Heal();
  }
  ExpectEqual(acknowledged.load(), 15);
  ExpectEqual(FullDisk::Read(*watcher), 15.0F);
  ExpectEqual(disk.Stat(*watcher, "log.disk_full"), 0.0);
  Expect(disk.Stat(*watcher, "log.disk_full_s") > 0.5);
  std::lock_guard lock(disk.mutex);
  int told = 0;
  for (const auto& text : disk.logged) told += text.find("cannot write its log") != text.npos;
  ExpectEqual(told, 1);
}

const Test kFull("a full disk holds acknowledgements back, and nothing is lost: process",
                 [] { CheckFullDisk(Durability::kProcess); });
const Test kFullDisk("a full disk holds acknowledgements back, and nothing is lost: disk",
                     [] { CheckFullDisk(Durability::kDisk); });

const Test kFullTooLong("a disk that stays full is an error with its path and free space", [] {
  FullDisk disk(Durability::kProcess);
  auto first = disk.Connect("first", 1.0);
  auto second = disk.Connect("second", 1.0);
  auto impatient = disk.Connect("impatient", 0);
  disk.files.FailWritesAfter(10, ENOSPC);
  // This one is in memory, and will be in the log: so it may have run.
  const Status begun = FullDisk::Push(*first).status();
  ExpectEqual(begun.code(), Code::kDeadlineExceeded);
  Expect(begun.message().find("may or may not have run") != std::string::npos);
  for (Client* client : {second.get(), impatient.get()}) {
    const Status status = FullDisk::Push(*client).status();
    ExpectEqual(status.code(), Code::kDiskFull);
    Expect(status.message().find(disk.place.path()) != std::string::npos, status.message());
    Expect(status.message().find("bytes are free") != std::string::npos, status.message());
    Expect(status.message().find("nothing was changed") != std::string::npos, status.message());
  }
  ExpectEqual(FullDisk::Read(*second), 1.0F);  // reading needs no space
  disk.files.Heal();
  while (disk.Stat(*second, "log.disk_full") > 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  RequireOk(FullDisk::Push(*second));
  ExpectEqual(FullDisk::Read(*second), 2.0F);
});

const Test kFullStop("a server with a full disk can be stopped", [] {
  FullDisk disk(Durability::kProcess);
  auto client = disk.Connect("client", 1.0);
  disk.files.FailWritesAfter(10, ENOSPC);
  Expect(!FullDisk::Push(*client).ok());
  client.reset();
  const auto begun = std::chrono::steady_clock::now();
  disk.server->Stop();
  Expect(std::chrono::steady_clock::now() - begun < std::chrono::seconds(20));
});

const Test kAway("a server that is away for longer than a call may take does not end the call", [] {
  const TemporaryDirectory place;
  DurableProcess server(place.path(), Durability::kProcess, 1ull << 30);
  auto client = ConnectTo(server, "patient");
  RequireOk(client->Define(LedgerSpec("t", 1), kTimeout));
  server.Kill();
  std::jthread starter([&server] {
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    server.Start();
  });
  const auto result = FullDisk::Push(*client, 0.5);
  Require(result.ok(), result.status().message());
  ExpectEqual(FullDisk::Read(*client), 1.0F);
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) {
  sparsefleet::testing::ServeIfAsked(argc, argv);
  return sparsefleet::testing::RunTests(argc, argv);
}
