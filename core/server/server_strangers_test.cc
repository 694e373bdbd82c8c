// A server under a flood of unauthenticated peers, at its connection limit, or out of descriptors.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/server.h"
#include "testing/channel_pair.h"
#include "testing/check.h"
#include "testing/test_server.h"
#include "transport/channel.h"
#include "transport/socket.h"
#include "transport/stream_io.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kDeadline{20};
constexpr TransportKind kKinds[] = {TransportKind::kTls, TransportKind::kPlain};

// A connection that sends nothing.
OwnedSocket Stranger(const TestServer& server, const char* source = "127.0.0.1") {
  OwnedSocket socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, source, &address.sin_addr);
  Require(::bind(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0, source);
  ::inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  address.sin_port = htons(server.server->port());
  Require(::connect(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0,
          "connect");
  return socket;
}

double Stat(const TestServer& server, const std::string& name) {
  return server.server->Stats()["server." + name];
}

void AwaitStat(const TestServer& server, const std::string& name, double least) {
  const auto deadline = Clock::now() + kDeadline;
  while (Stat(server, name) < least) {
    Require(Clock::now() < deadline, name + " stays at " + std::to_string(Stat(server, name)));
    std::this_thread::yield();
  }
}

void AwaitProven(const TestServer& server, double count) {
  const auto deadline = Clock::now() + kDeadline;
  while (Stat(server, "connections") - Stat(server, "connections_unproven") != count) {
    Require(Clock::now() < deadline, "nobody has proven the key");
    std::this_thread::yield();
  }
}

bool IsClosed(const OwnedSocket& socket) {
  pollfd entry{socket.fd(), POLLIN, 0};
  return ::poll(&entry, 1, 0) > 0;
}

bool ReadsEnd(const OwnedSocket& socket) {
  pollfd entry{socket.fd(), POLLIN, 0};
  return ::poll(&entry, 1, 20'000) > 0;
}

ServerOptions With(TransportKind kind, std::uint32_t max_connections, std::uint32_t max_unproven,
                   std::uint32_t per_address = 0) {
  ServerOptions options;
  options.security = TestSecurity(kind);
  options.max_connections = max_connections;
  options.max_unproven = max_unproven;
  options.max_unproven_per_address = per_address == 0 ? max_unproven : per_address;
  return options;
}

// A client that pauses halfway through its handshake until Finish(). The test relays its bytes, so
// it can hold back the server's answer.
class SlowClient {
 public:
  explicit SlowClient(const TestServer& server)
      : factory_(RequireOk(ChannelFactory::Create(server.security))), to_server_(Stranger(server)) {
    const auto fds = SocketPair();
    channel_ = RequireOk(factory_->Connect(fds[0]));
    from_client_ = OwnedSocket(fds[1]);
    Require(RequireOk(channel_->Handshake()) == Ready::kWantRead, "the client speaks first");
    Move(from_client_, to_server_);
    pollfd entry{to_server_.fd(), POLLIN, 0};
    Require(::poll(&entry, 1, 20'000) > 0, "the server answers a first message");
  }

  // False if the server has closed the connection in the meantime.
  bool Finish() {
    for (;;) {
      if (!Move(to_server_, from_client_)) return false;
      const bool is_done = RequireOk(channel_->Handshake()) == Ready::kDone;
      Move(from_client_, to_server_);
      if (is_done) return true;
    }
  }

 private:
  // Waits for bytes and relays them; false at the end of the stream.
  static bool Move(const OwnedSocket& from, const OwnedSocket& to) {
    std::array<std::byte, 4096> room;
    const IoResult read = ReceiveSome(from.fd(), room);
    if (read.outcome != IoOutcome::kMoved) return false;
    const iovec buffer{room.data(), read.bytes};
    return SendSome(to.fd(), {&buffer, 1}).bytes == read.bytes;
  }

  std::unique_ptr<ChannelFactory> factory_;
  std::unique_ptr<Channel> channel_;
  OwnedSocket from_client_;
  OwnedSocket to_server_;
};

const Test kFlood("among silent strangers the oldest are dropped, and clients never are", [] {
  for (const TransportKind kind : kKinds) {
    TestServer server(With(kind, 10, 8));
    auto client = server.Join(1, "worker");
    std::vector<OwnedSocket> strangers;
    for (int i = 0; i < 200; ++i) strangers.push_back(Stranger(server));
    // The other four places are reserved for peers whose first message was valid.
    AwaitStat(server, "unproven_dropped", 196);
    for (int i = 0; i < 196; ++i) Require(ReadsEnd(strangers[i]), "one of the oldest");
    for (int i = 196; i < 200; ++i) Expect(!IsClosed(strangers[i]), "one of the newest");
    ExpectEqual(Stat(server, "connections_unproven"), 4.0);
    AwaitProven(server, 1);
    RequireOk(client->Call(MessageType::kHeartbeat, {}).status);
    RequireOk(server.Join(2, "newcomer")->Call(MessageType::kHeartbeat, {}).status);
    server.log->Await("that has not proven the job key: the limit is 8 such connections");
  }
});

const Test kHalfWay("a client whose first message was valid is not dropped for silent strangers",
                    [] {
                      for (const TransportKind kind : kKinds) {
                        TestServer server(With(kind, 10, 8));
                        SlowClient slow(server);
                        // The answer leaves before the server takes note of it.
                        AwaitStat(server, "connections_answered", 1);
                        std::vector<OwnedSocket> strangers;
                        for (int i = 0; i < 100; ++i) strangers.push_back(Stranger(server));
                        AwaitStat(server, "unproven_dropped", 96);
                        Expect(slow.Finish(), "it was dropped");
                        AwaitProven(server, 1);
                      }
                    });

const Test kReplayed("clients that stop halfway are limited too", [] {
  TestServer server(With(TransportKind::kPlain, 10, 8));
  std::vector<std::unique_ptr<SlowClient>> slow;
  for (int i = 0; i < 20; ++i) slow.push_back(std::make_unique<SlowClient>(server));
  AwaitStat(server, "unproven_dropped", 16);
  slow.front()->Finish();  // too late
  Expect(slow.back()->Finish(), "the newest was dropped");
  AwaitProven(server, 1);
  ExpectEqual(Stat(server, "unproven_dropped"), 16.0);
});

#ifdef __linux__  // other systems have one loopback address
const Test kPerAddress("strangers from one address do not displace those from another", [] {
  TestServer server(With(TransportKind::kPlain, 10, 16, 4));
  const OwnedSocket early = Stranger(server, "127.0.0.2");
  AwaitStat(server, "connections_unproven", 1);
  std::vector<OwnedSocket> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(Stranger(server, "127.0.0.3"));
  AwaitStat(server, "unproven_dropped", 98);
  Expect(!IsClosed(early), "the oldest of all, but of another address");
  ExpectEqual(Stat(server, "connections_unproven"), 3.0);
});
#endif

const Test kFull("a client over the limit gets an error, and is accepted once another leaves", [] {
  for (const TransportKind kind : kKinds) {
    TestServer server(With(kind, 2, 4));
    auto first = server.Join(1, "a");
    auto second = server.Join(2, "b");
    auto third = server.Connect();
    const auto refused = third->Hello(3, "c").status;
    ExpectCode(refused, Code::kIo);
    Expect(refused.message().find("all 2 connections") != std::string::npos, refused.message());
    Expect(third->AwaitClose());
    RequireOk(first->Call(MessageType::kHeartbeat, {}).status);
    second->Close();
    const auto deadline = Clock::now() + kDeadline;
    while (!server.Connect()->Hello(3, "c").status.ok()) Require(Clock::now() < deadline, "full");
    RequireOk(first->Call(MessageType::kHeartbeat, {}).status);
  }
});

const Test kFullOfStrangers("a full server drops no client for strangers", [] {
  TestServer server(With(TransportKind::kTls, 3, 4));
  std::vector<std::unique_ptr<WireClient>> clients;
  for (std::uint64_t i = 0; i < 3; ++i) clients.push_back(server.Join(1 + i, "worker"));
  std::vector<OwnedSocket> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(Stranger(server));
  AwaitStat(server, "unproven_dropped", 98);
  for (const auto& client : clients) RequireOk(client->Call(MessageType::kHeartbeat, {}).status);
  ExpectEqual(Stat(server, "clients_lost"), 0.0);
});

// UBSan needs a pipe to inspect the type of an object.
#ifndef __SANITIZE_ADDRESS__

// Leaves this process with `spare` free descriptors.
class NoDescriptors {
 public:
  explicit NoDescriptors(int spare = 0) {
    Require(::getrlimit(RLIMIT_NOFILE, &before_) == 0, "no limits here");
    rlimit tight = before_;
    tight.rlim_cur = static_cast<rlim_t>(OwnedSocket(::dup(0)).fd()) + 32;
    Require(::setrlimit(RLIMIT_NOFILE, &tight) == 0, "no limits here");
    for (int fd = ::dup(0); fd >= 0; fd = ::dup(0)) taken_.emplace_back(fd);
    taken_.resize(taken_.size() - static_cast<std::size_t>(spare));
  }
  ~NoDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  std::vector<OwnedSocket> taken_;
};

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

const Test kNoFiles("out of descriptors a server keeps serving, does not spin, and recovers", [] {
  TestServer server(With(TransportKind::kPlain, 10, 8));
  auto client = server.Join(1, "worker");
  std::unique_ptr<WireClient> waiting;
  std::jthread newcomer;
  {
    // The spare one is for the new client's own end.
    NoDescriptors none(1);
    newcomer = std::jthread([&] { waiting = server.Join(2, "newcomer"); });
    const std::string first = server.log->Await("cannot accept connections");
    Expect(first.find("Too many open files") != std::string::npos, first);
    const double cpu = CpuSeconds();
    const auto start = Clock::now();
    // Such lines appear at most once per second.
    server.log->Await("similar lines skipped");
    const double wall = std::chrono::duration<double>(Clock::now() - start).count();
    Expect(CpuSeconds() - cpu < 0.5 * wall, "the server spins");
    RequireOk(client->Call(MessageType::kHeartbeat, {}).status);
  }
  newcomer.join();
  RequireOk(waiting->Call(MessageType::kHeartbeat, {}).status);
});

const Test kFilesOfStrangers("out of descriptors a server drops strangers for a new client", [] {
  TestServer server(With(TransportKind::kPlain, 10, 8));
  std::vector<OwnedSocket> strangers;
  for (int i = 0; i < 3; ++i) strangers.push_back(Stranger(server));
  AwaitStat(server, "connections_unproven", 3);
  {
    NoDescriptors none(1);
    RequireOk(server.Join(2, "newcomer")->Call(MessageType::kHeartbeat, {}).status);
    Expect(ReadsEnd(strangers[0]), "the oldest");
    Expect(!IsClosed(strangers[2]), "the newest");
  }
  ExpectEqual(Stat(server, "unproven_dropped"), 1.0);
});

#endif  // __SANITIZE_ADDRESS__

const Test kRaised("a server raises the soft limit of open files as far as its clients need", [] {
  rlimit before{};
  Require(::getrlimit(RLIMIT_NOFILE, &before) == 0, "no limits here");
  rlimit low = before;
  low.rlim_cur = 256;
  Require(::setrlimit(RLIMIT_NOFILE, &low) == 0, "the limit stays");
  ServerOptions options = With(TransportKind::kPlain, 400, 4);
  {
    const auto server = RequireOk(Server::Start(options));
    rlimit raised{};
    Require(::getrlimit(RLIMIT_NOFILE, &raised) == 0, "no limits here");
    Expect(raised.rlim_cur > 400 || raised.rlim_cur == raised.rlim_max,
           std::to_string(raised.rlim_cur));
  }
  Require(::setrlimit(RLIMIT_NOFILE, &before) == 0, "the limit stays");
});

const Test kLimits("limits that leave no connections for clients are rejected", [] {
  rlimit before{};
  Require(::getrlimit(RLIMIT_NOFILE, &before) == 0, "no limits here");
  ServerOptions options = With(TransportKind::kPlain, 0, 4);
  ExpectCode(Server::Start(options).status(), Code::kInvalidArgument);
  if (before.rlim_max < (1u << 20)) {
    options = With(TransportKind::kPlain, 10, 1u << 20);
    const Status status = Server::Start(options).status();
    ExpectCode(status, Code::kInvalidArgument);
    Expect(status.message().find("max_unproven") != std::string::npos, status.message());
  }
  Require(::setrlimit(RLIMIT_NOFILE, &before) == 0, "the limit stays");
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
