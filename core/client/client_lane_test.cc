// Clients and servers on one host: when they share memory, and that nothing else changes.
#include <dirent.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "server/server.h"
#include "testing/channel_pair.h"
#include "testing/check.h"
#include "testing/wire_client.h"

namespace sparsefleet::testing {
namespace {

constexpr double kTimeout_s = 60;

std::unique_ptr<Server> StartServer(TransportKind kind) {
  ServerOptions options;
  options.security = Security(kind);
  options.num_threads = 2;
  return RequireOk(Server::Start(options));
}

std::unique_ptr<Client> Connect(const Server& server, TransportKind kind) {
  ClientOptions options;
  options.endpoints = {"127.0.0.1:" + std::to_string(server.port())};
  options.security = Security(kind);
  return RequireOk(Client::Connect(options));
}

DenseSpec Tower(std::uint64_t size) {
  DenseSpec spec;
  spec.name = "tower";
  spec.size = size;
  spec.optimizer.kind = OptimizerKind::kSgd;
  spec.optimizer.learning_rate = 1.0;
  return spec;
}

void Push(Client& client, std::span<const float> gradients, std::span<float> values_after = {}) {
  PushSection section{"tower", {}, gradients, true, false, false};
  section.out = values_after;
  RequireOk(client.Push({&section, 1}, 1, kTimeout_s).status());
}

std::vector<float> Pull(Client& client, std::size_t size) {
  std::vector<float> values(size);
  PullSection section{"tower", {}, values, true, 0};
  RequireOk(client.Pull({&section, 1}, PullMode::kTrain, 1, kTimeout_s));
  return values;
}

double LaneConnections(const Server& server) {
  return server.Stats().at("server.lane_connections_total");
}

const Test kUsesLane(
    "a client on this host switches to shared memory, for frames of any length", [] {
      const auto server = StartServer(TransportKind::kAuto);
      const auto client = Connect(*server, TransportKind::kAuto);
      const std::size_t size = 3'000'000;  // 12 MB, more than the shared memory
      RequireOk(client->Define(Tower(size), kTimeout_s));
      std::vector<float> gradients(size);
      std::iota(gradients.begin(), gradients.end(), 0.0F);
      Push(*client, gradients);
      const auto values = Pull(*client, size);
      Expect(std::ranges::equal(values, gradients, [](float a, float b) { return a == -b; }));
      ExpectEqual(LaneConnections(*server), 1.0);
      ExpectEqual(server->Stats().at("server.requests.lane"), 1.0);
      // The server counts a reply after the client may have read it.
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      auto stats = server->Stats();
      while (stats.at("server.lane_bytes_out") <= 4.0 * size &&
             std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
        stats = server->Stats();
      }
      for (const std::string way : {"bytes_in", "bytes_out"}) {
        Expect(stats.at("server.lane_" + way) > 4.0 * size, "the values went through memory");
        Expect(stats.at("server.socket_" + way) > 0.0, "the greeting went over a socket");
        Expect(stats.at("server.socket_" + way) < 1'000.0, "nothing else did");
      }
    });

const Test kForcedTls("an end that requires TLS gets it", [] {
  for (const auto& [ours, theirs] : {std::pair(TransportKind::kTls, TransportKind::kAuto),
                                     std::pair(TransportKind::kAuto, TransportKind::kTls),
                                     std::pair(TransportKind::kTls, TransportKind::kTls)}) {
    const auto server = StartServer(theirs);
    const auto client = Connect(*server, ours);
    RequireOk(client->Define(Tower(10), kTimeout_s));
    Push(*client, std::vector<float>(10, 1.0F));
    ExpectEqual(Pull(*client, 10)[9], -1.0F);
    ExpectEqual(LaneConnections(*server), 0.0);
  }
});

const Test kNotRoundAProxy("only a client connected directly to the server learns of the lane", [] {
  const auto server = StartServer(TransportKind::kAuto);
  WireClient client(server->port(), Security(TransportKind::kAuto));
  RequireOk(client.handshake());
  RequireOk(client.Hello(1, "worker").status);
  const auto told = [&](const std::string& address) {
    const auto reply = client.Call(MessageType::kLane, EncodeText(address));
    RequireOk(reply.status);
    return std::string(RequireOk(DecodeText(reply.body)));
  };
  const std::string own = "127.0.0.1:" + std::to_string(server->port());
  Expect(told(own).starts_with("sparsefleet-"));
  ExpectEqual(told("127.0.0.1:1"), "");
  ExpectEqual(told("10.0.0.1:" + std::to_string(server->port())), "");
  ExpectEqual(told(""), "");
});

// Breaks the lane connections of this process, as a system might; returns how many.
int CutLanes() {
  int cut = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  Require(folder != nullptr, "no /proc/self/fd");
  while (const dirent* entry = ::readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    sockaddr_un name{};
    socklen_t size = sizeof(name);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&name), &size) != 0 ||
        name.sun_family != AF_UNIX || std::memcmp(name.sun_path + 1, "sparsefleet-", 12) != 0) {
      continue;
    }
    ::shutdown(fd, SHUT_RDWR);
    ++cut;
  }
  ::closedir(folder);
  return cut;
}

const Test kExactlyOnce("pushes over a lane that keeps breaking are applied exactly once", [] {
  const auto server = StartServer(TransportKind::kAuto);
  const auto client = Connect(*server, TransportKind::kAuto);
  const std::size_t size = 100'000;
  RequireOk(client->Define(Tower(size), kTimeout_s));
  constexpr int kPushes = 100;
  std::atomic<int> begun = 0;
  std::jthread cutter([&] {
    for (int push = 1; push <= kPushes; ++push) {
      while (begun < push) std::this_thread::yield();
      for (int i = 0; i < push % 20; ++i) std::this_thread::yield();  // at varying moments
      CutLanes();
    }
  });
  const std::vector<float> ones(size, 1.0F);
  std::vector<float> after(size);
  for (int i = 0; i < kPushes; ++i) {
    ++begun;
    Push(*client, ones, after);
    Expect(std::ranges::all_of(after, [i](float value) { return value == -(i + 1); }));
  }
  cutter.join();
  const auto values = Pull(*client, size);
  Expect(std::ranges::all_of(values, [](float value) { return value == -kPushes; }));
});

const Test kComesBack("a client returns to the lane after its connections broke", [] {
  const auto server = StartServer(TransportKind::kAuto);
  const auto client = Connect(*server, TransportKind::kAuto);
  RequireOk(client->Define(Tower(10), kTimeout_s));
  for (int i = 0; i < 3; ++i) {
    Push(*client, std::vector<float>(10, 1.0F));
    ExpectEqual(CutLanes(), 1);
  }
  ExpectEqual(Pull(*client, 10)[0], -3.0F);
  ExpectEqual(LaneConnections(*server), 4.0);
});

const Test kLost("a client on the lane notices a lost server like any other", [] {
  auto server = StartServer(TransportKind::kAuto);
  const auto client = Connect(*server, TransportKind::kAuto);
  RequireOk(client->Define(Tower(10), kTimeout_s));
  Push(*client, std::vector<float>(10, 1.0F));
  server.reset();
  const std::vector<float> gradients(10, 1.0F);
  PushSection section{"tower", {}, gradients, true, false, false};
  const auto pushed = client->Push({&section, 1}, 1, 0.5);
  ExpectCode(pushed.status(), Code::kDeadlineExceeded);
  Expect(pushed.status().message().find("127.0.0.1:") != std::string::npos);
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
