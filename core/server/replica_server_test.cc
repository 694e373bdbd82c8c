// Servers whose log a replica holds: what was acknowledged outlives their directory, and a process
// that has a successor acknowledges nothing.
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "testing/check.h"
#include "testing/faulty_files.h"
#include "testing/test_server.h"

namespace sparsefleet::testing {
namespace {

constexpr double kTimeout = 60;

// A replica, which can end and come back on its port.
class Replica {
 public:
  explicit Replica(std::string directory) : directory_(std::move(directory)) { Start(); }

  void Start() {
    ServerOptions options;
    options.security = TestSecurity(TransportKind::kAuto);
    options.port = port_;
    options.replica_dir = directory_;
    options.max_frame_bytes = kMaxBodyBytes;
    server_ = RequireOk(Server::Start(std::move(options)));
    port_ = server_->port();
  }
  void Stop() { server_.reset(); }
  std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }
  StatMap stats() const { return server_->Stats(); }

 private:
  const std::string directory_;
  std::uint16_t port_ = 0;
  std::unique_ptr<Server> server_;
};

struct Lines {
  std::shared_ptr<LogLines> log = std::make_shared<LogLines>();
};

std::unique_ptr<Server> StartServer(const Replica& replica, const std::string& directory,
                                    Lines lines = {}, std::uint16_t port = 0,
                                    std::uint64_t snapshot_bytes = 1ull << 30,
                                    double wait_s = std::numeric_limits<double>::infinity()) {
  ServerOptions options;
  options.security = TestSecurity(TransportKind::kAuto);
  options.port = port;
  options.durability = Durability::kReplica;
  options.log_dir = directory;
  options.replica = replica.endpoint();
  options.replica_wait_s = wait_s;
  options.snapshot_bytes = snapshot_bytes;
  options.peer_timeout_s = 4;
  options.drain_timeout_s = 1;
  options.log = [log = lines.log](int, const std::string& line) { log->Add(line); };
  return RequireOk(Server::Start(std::move(options)));
}

std::unique_ptr<Client> ConnectTo(std::uint16_t port) {
  ClientOptions options;
  options.endpoints = {"127.0.0.1:" + std::to_string(port)};
  options.security = TestSecurity(TransportKind::kAuto);
  options.failover_wait_s = kTimeout;
  return RequireOk(Client::Connect(std::move(options)));
}

void Define(Client& client) {
  SparseSpec spec;
  spec.name = "t";
  spec.dim = 1;
  spec.optimizer.kind = OptimizerKind::kSgd;
  spec.optimizer.learning_rate = 1.0;
  RequireOk(client.Define(spec, kTimeout));
}

const std::vector<Key> kKeys = {1, 2, 3};

// Adds 1 to each row.
Status Push(Client& client, double timeout_s = kTimeout) {
  const std::vector<float> gradients(kKeys.size(), -1.0F);
  PushSection section;
  section.table = "t";
  section.keys = kKeys;
  section.gradients = gradients;
  return client.Push({&section, 1}, 1, timeout_s).status();
}

float Value(Client& client) {
  std::vector<float> rows(kKeys.size());
  const PullSection pulled{"t", kKeys, rows};
  RequireOk(client.Pull({&pulled, 1}, PullMode::kInferZeros, 1, kTimeout));
  Expect(rows == std::vector<float>(kKeys.size(), rows[0]));
  return rows[0];
}

const Test kElsewhere("a server with an empty directory continues from its replica", [] {
  for (const std::uint64_t snapshot_bytes : {std::uint64_t{1} << 30, std::uint64_t{1}}) {
    const TemporaryDirectory held;
    const TemporaryDirectory first_place;
    Replica replica(held.path());
    auto server = StartServer(replica, first_place.path(), {}, 0, snapshot_bytes);
    const std::uint16_t port = server->port();
    auto client = ConnectTo(port);
    Define(*client);
    for (int i = 0; i < 5; ++i) RequireOk(Push(*client));
    if (snapshot_bytes == 1) RequireOk(server->Snapshot());
    for (int i = 0; i < 3; ++i) RequireOk(Push(*client));
    server.reset();
    const TemporaryDirectory second_place;
    server = StartServer(replica, second_place.path(), {}, port, snapshot_bytes);
    RequireOk(Push(*client));
    ExpectEqual(Value(*client), 9.0F);
    // Nor is what the first directory has taken for newer.
    server.reset();
    server = StartServer(replica, first_place.path(), {}, port, snapshot_bytes);
    ExpectEqual(Value(*client), 9.0F);
    ExpectEqual(server->Stats().at("log.replica_epoch"), 3.0);
  }
});

const Test kFenced("a process whose successor serves acknowledges nothing any more", [] {
  const TemporaryDirectory held;
  const TemporaryDirectory first_place;
  const TemporaryDirectory second_place;
  Replica replica(held.path());
  Lines lines;
  auto zombie = StartServer(replica, first_place.path(), lines);
  auto old_client = ConnectTo(zombie->port());
  Define(*old_client);
  RequireOk(Push(*old_client));
  auto successor = StartServer(replica, second_place.path());
  Expect(!Push(*old_client, 2.0).ok(), "the zombie acknowledged a push");
  lines.log->Await("a successor (epoch 2) has taken over");
  ExpectEqual(zombie->failure().code(), Code::kNotOwner);
  auto client = ConnectTo(successor->port());
  ExpectEqual(Value(*client), 1.0F);
  RequireOk(Push(*client));
  ExpectEqual(Value(*client), 2.0F);
});

const Test kIdleFenced("a process that is idle notices its successor", [] {
  const TemporaryDirectory held;
  const TemporaryDirectory first_place;
  const TemporaryDirectory second_place;
  Replica replica(held.path());
  Lines lines;
  auto zombie = StartServer(replica, first_place.path(), lines);
  auto successor = StartServer(replica, second_place.path());
  lines.log->Await("a successor (epoch 2) has taken over");
  Expect(zombie->WaitForShutdownRequest(20));
});

const Test kWaits("changes wait for a replica that is lost, which then catches up", [] {
  for (const bool is_emptied : {false, true}) {
    const TemporaryDirectory held;
    const TemporaryDirectory place;
    Replica replica(held.path());
    Lines lines;
    auto server = StartServer(replica, place.path(), lines);
    auto client = ConnectTo(server->port());
    Define(*client);
    RequireOk(Push(*client));
    if (is_emptied) RequireOk(server->Snapshot());
    replica.Stop();
    std::atomic<bool> is_over = false;
    std::jthread pushing([&] {
      RequireOk(Push(*client));
      is_over = true;
    });
    lines.log->Await("is lost; changes wait for it until it is back");
    Expect(!is_over, "a push was acknowledged without the replica");
    ExpectEqual(server->Stats().at("log.replica_lost"), 1.0);
    if (is_emptied) std::filesystem::remove_all(held.path() + "/server-0");
    replica.Start();
    pushing.join();
    lines.log->Await("is back and holds everything again");
    const std::uint16_t port = server->port();
    server.reset();
    const TemporaryDirectory other_place;
    server = StartServer(replica, other_place.path(), {}, port);
    ExpectEqual(Value(*client), 2.0F);
  }
});

const Test kContinues("with a limit to the wait the server continues without, and catches up", [] {
  const TemporaryDirectory held;
  const TemporaryDirectory place;
  Replica replica(held.path());
  Lines lines;
  auto server = StartServer(replica, place.path(), lines, 0, 1ull << 30, 0.1);
  auto client = ConnectTo(server->port());
  Define(*client);
  RequireOk(Push(*client));
  replica.Stop();
  RequireOk(Push(*client));
  lines.log->Await("WITHOUT IT");
  RequireOk(Push(*client));
  const StatMap stats = server->Stats();
  ExpectEqual(stats.at("log.replica_degraded"), 1.0);
  Expect(stats.at("log.replica_lag_records") >= 2.0);
  replica.Start();
  lines.log->Await("is back and holds everything again");
  RequireOk(Push(*client));
  ExpectEqual(server->Stats().at("log.replica_degraded"), 0.0);
  const std::uint16_t port = server->port();
  server.reset();
  const TemporaryDirectory other_place;
  server = StartServer(replica, other_place.path(), {}, port);
  ExpectEqual(Value(*client), 4.0F);
});

const Test kCut("the replica cuts its log where a snapshot stands", [] {
  const TemporaryDirectory held;
  const TemporaryDirectory place;
  Replica replica(held.path());
  auto server = StartServer(replica, place.path());
  auto client = ConnectTo(server->port());
  Define(*client);
  for (int i = 0; i < 3; ++i) {
    RequireOk(Push(*client));
    RequireOk(server->Snapshot());
  }
  std::size_t snapshots = 0;
  for (const auto& file : std::filesystem::directory_iterator(held.path() + "/server-0")) {
    snapshots += file.path().extension() == ".snap" ? 1 : 0;
  }
  ExpectEqual(snapshots, std::size_t{1});
  RequireOk(Push(*client));
  const std::uint16_t port = server->port();
  server.reset();
  const TemporaryDirectory other_place;
  server = StartServer(replica, other_place.path(), {}, port);
  ExpectEqual(Value(*client), 4.0F);
});

const Test kMoved("a client follows its server to another address", [] {
  const TemporaryDirectory held;
  const TemporaryDirectory first_place;
  Replica replica(held.path());
  auto server = StartServer(replica, first_place.path());
  const TemporaryDirectory addresses;
  const std::string file = addresses.path() + "/server-0";
  const std::uint16_t port = server->port();
  std::ofstream(file) << "127.0.0.1:" << port << "\n";
  ClientOptions options;
  options.endpoints = {file};
  options.security = TestSecurity(TransportKind::kAuto);
  options.failover_wait_s = kTimeout;
  auto client = RequireOk(Client::Connect(std::move(options)));
  Define(*client);
  RequireOk(Push(*client));
  server.reset();
  const TemporaryDirectory second_place;
  server = StartServer(replica, second_place.path());
  Expect(server->port() != port, "the test needs another port");
  std::ofstream(file) << "127.0.0.1:" << server->port() << "\n";
  RequireOk(Push(*client));
  ExpectEqual(Value(*client), 2.0F);
});

const Test kAbsent("a server does not start without its replica", [] {
  const TemporaryDirectory place;
  ServerOptions options;
  options.security = TestSecurity(TransportKind::kAuto);
  options.durability = Durability::kReplica;
  options.log_dir = place.path();
  options.replica_start_wait_s = 0.2;
  ServerOptions unnamed = options;
  ExpectEqual(Server::Start(std::move(unnamed)).status().code(), Code::kInvalidArgument);
  options.replica = "127.0.0.1:1";
  const Status refused = Server::Start(std::move(options)).status();
  Expect(refused.message().find("does not start without it") != std::string::npos,
         refused.message());
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
