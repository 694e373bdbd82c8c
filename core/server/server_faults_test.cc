// A server whose peers lie, vanish, stall or repeat themselves.
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server/server.h"
#include "testing/check.h"
#include "testing/test_server.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

const std::vector<Key> kOneKey = {42};
const std::vector<float> kOne = {1.0f};

Body DefineOne() {
  SparseSpec spec;
  spec.name = "t";
  spec.dim = 1;
  spec.optimizer.learning_rate = 1.0;
  return Encode(spec);
}

Body PushOne() {
  PushRequest request;
  request.sections.push_back({"t", false, false, false, 1, 1, kOneKey, kOne});
  return Encode(request);
}

Body PullOne() {
  PullRequest request;
  request.sections.push_back({"t", false, 1, 1, 0, kOneKey});
  return Encode(request);
}

float ValueOf(WireClient& client) {
  auto reply = client.Call(MessageType::kPull, PullOne());
  RequireOk(reply.status);
  float value = 0;
  std::memcpy(&value, reply.body.data(), sizeof(value));
  return value;
}

std::vector<std::byte> HeaderBytes(FrameHeader header) {
  std::vector<std::byte> bytes(kFrameHeaderBytes);
  EncodeFrameHeader(header, std::span<std::byte, kFrameHeaderBytes>(bytes));
  return bytes;
}

ServerOptions Quick() {
  ServerOptions options;
  options.security = TestSecurity(TransportKind::kPlain);
  options.frame_timeout_s = 0.3;
  return options;
}

ServerOptions QuickToLose() {
  ServerOptions options;
  options.peer_timeout_s = 1.0;
  return options;
}

const Test kGhost("a barrier call that was given up does not count as a second member", [] {
  TestServer server;
  const Body barrier = Encode(BarrierRequest{"b", 2});
  auto first = server.Join(1, "impatient");
  first->Request(MessageType::kBarrier, barrier, 1);
  // In order on its connection, so the barrier call has arrived.
  RequireOk(first->Call(MessageType::kStats, {}).status);
  first->Close();
  auto again = server.Join(1, "impatient");
  const auto waiting = again->Request(MessageType::kBarrier, barrier, 2, 20'000, 2);
  const auto asked = again->Request(MessageType::kStats, {});
  ExpectEqual(again->ReadReply().header.request_id, asked);
  auto other = server.Join(2, "other");
  RequireOk(other->Call(MessageType::kBarrier, barrier, 1).status);
  const auto reply = again->ReadReply();
  ExpectEqual(reply.header.request_id, waiting);
  RequireOk(reply.status);
});

const Test kWindows("a barrier and a push may have the same sequence: they are numbered separately",
                    [] {
                      TestServer server;
                      auto client = server.Join(1, "c");
                      auto other = server.Join(2, "other");
                      RequireOk(client->Call(MessageType::kDefineSparse, DefineOne(), 1).status);
                      const Body barrier = Encode(BarrierRequest{"b", 2});
                      const auto waiting = client->Request(MessageType::kBarrier, barrier, 2);
                      const auto pushed =
                          client->Request(MessageType::kPush, PushOne(), 2, 20'000, 2);
                      ExpectEqual(client->ReadReply().header.request_id, pushed);
                      RequireOk(other->Call(MessageType::kBarrier, barrier, 1).status);
                      ExpectEqual(client->ReadReply().header.request_id, waiting);
                    });

const Test kOversized("a frame that claims too large a body gets TOO_LARGE and a closed connection",
                      [] {
                        TestServer server;
                        auto client = server.Join(1, "liar");
                        auto other = server.Join(2, "honest");
                        FrameHeader header;
                        header.type = MessageType::kStats;
                        header.request_id = 77;
                        header.body_bytes = 0xffffffff;
                        client->SendBytes(HeaderBytes(header));
                        const auto reply = client->ReadReply();
                        ExpectCode(reply.status, Code::kTooLarge);
                        ExpectEqual(reply.header.request_id, 77u);
                        Expect(client->AwaitClose());
                        RequireOk(other->Call(MessageType::kHeartbeat, {}).status);
                        ExpectEqual(server.server->Stats()["server.protocol_errors"], 1.0);
                      });

const Test kSlowSender(
    "a peer that still sends a rejected frame is not cut off before it reads why", [] {
      TestServer server;
      auto client = server.Join(1, "slow");
      FrameHeader header;
      header.type = MessageType::kStats;
      header.request_id = 77;
      header.body_bytes = 0xffffffff;
      client->SendBytes(HeaderBytes(header));
      const std::vector<std::byte> block(1024);
      for (int i = 0; i < 30; ++i) {
        Require(client->SendBytes(block), "the server reset the connection");
        std::this_thread::sleep_for(std::chrono::milliseconds(100));  // a slow peer
      }
      ExpectCode(client->ReadReply().status, Code::kTooLarge);
    });

const Test kVersion("the error for another protocol version names both", [] {
  TestServer server;
  auto client = server.Connect();
  FrameHeader header;
  header.version = 9;
  client->SendBytes(HeaderBytes(header));
  const auto reply = client->ReadReply();
  ExpectCode(reply.status, Code::kVersionMismatch);
  Expect(client->AwaitClose());
});

const Test kTruncated("a connection that ends inside a frame applies nothing", [] {
  TestServer server;
  auto healthy = server.Join(2, "healthy");
  RequireOk(healthy->Call(MessageType::kDefineSparse, DefineOne(), 1).status);
  const Body body = PushOne();
  for (std::size_t cut = 1; cut < kFrameHeaderBytes + body.size(); cut += 13) {
    auto client = server.Join(1, "cut-off");
    FrameHeader header;
    header.type = MessageType::kPush;
    header.sequence = cut;
    header.body_bytes = static_cast<std::uint32_t>(body.size());
    auto bytes = HeaderBytes(header);
    bytes.insert(bytes.end(), body.begin(), body.end());
    client->SendBytes(std::span(bytes).first(cut));
    client->Close();
    RequireOk(healthy->Call(MessageType::kHeartbeat, {}).status);
  }
  ExpectEqual(server.server->Stats()["table.t.version"], 0.0);
});

const Test kStalled("a peer that stops inside a frame is disconnected; others are still served",
                    [] {
                      TestServer server(Quick());
                      auto stalled = server.Join(1, "stalled");
                      auto healthy = server.Join(2, "healthy");
                      FrameHeader header;
                      header.type = MessageType::kStats;
                      header.body_bytes = 1000;
                      stalled->SendBytes(HeaderBytes(header));
                      std::atomic<bool> closed{false};
                      std::jthread watcher([&] { closed = stalled->AwaitClose(); });
                      while (!closed) RequireOk(healthy->Call(MessageType::kHeartbeat, {}).status);
                      const std::string line =
                          server.log->Await("stopped in the middle of a frame");
                      Expect(line.find("client 'stalled' (127.0.0.1:") != std::string::npos, line);
                    });

const Test kSilentStranger("a stranger that sends nothing is disconnected in time", [] {
  ServerOptions options;
  options.handshake_timeout_s = 0.1;
  TestServer server(options);
  OwnedSocket socket(RequireOk(ConnectTo({"127.0.0.1", server.server->port()}, 20.0)));
  server.log->Await("it did not prove the job key within 0.1 s");
  ExpectEqual(server.server->Stats()["server.strangers_refused"], 1.0);
});

void WrongKey(TransportKind kind) {
  ServerOptions options;
  options.security = TestSecurity(kind);
  TestServer server(options);
  WireClient stranger(server.server->port(), TestSecurity(kind, 'x'));
  if (stranger.handshake().ok()) {
    // TLS reports the refusal to the client only with the first bytes after its own last message.
    stranger.Request(MessageType::kStats, {});
    Expect(!stranger.TryReadReply().has_value(), "a stranger gets nothing");
  }
  server.log->Await("refused 127.0.0.1:");
  auto friendly = server.Join(1, "friend");
  auto stats = RequireOk(DecodeStats(friendly->Call(MessageType::kStats, {}).body));
  ExpectEqual(stats["server.strangers_refused"], 1.0);
}

const Test kWrongKeyPlain("a wrong key gets a closed connection over plain",
                          [] { WrongKey(TransportKind::kPlain); });
const Test kWrongKeyTls("a wrong key gets a closed connection over TLS",
                        [] { WrongKey(TransportKind::kTls); });

void RandomBytes(TransportKind kind) {
  ServerOptions options;
  options.security = TestSecurity(kind);
  TestServer server(options);
  auto healthy = server.Join(2, "healthy");
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    std::vector<std::byte> noise(1 + random() % 3000);
    for (auto& byte : noise) byte = static_cast<std::byte>(random());
    OwnedSocket stranger(RequireOk(ConnectTo({"127.0.0.1", server.server->port()}, 20.0)));
    const iovec buffer{noise.data(), noise.size()};
    [[maybe_unused]] const auto written = ::writev(stranger.fd(), &buffer, 1);
    if (i % 10 == 0) {
      auto known = server.Join(3, "noisy");
      known->SendBytes(noise);
      known->Close();
    }
    RequireOk(healthy->Call(MessageType::kHeartbeat, {}).status);
  }
}

const Test kNoisePlain("random bytes over plain do no harm",
                       [] { RandomBytes(TransportKind::kPlain); });
const Test kNoiseTls("random bytes over TLS do no harm", [] { RandomBytes(TransportKind::kTls); });

const Test kBadBody("a malformed body gets PROTOCOL and a closed connection", [] {
  TestServer server;
  auto client = server.Join(1, "odd");
  ExpectCode(client->Call(MessageType::kPull, Body(5)).status, Code::kProtocol);
  Expect(client->AwaitClose());
});

const Test kDuplicate(
    "a push sent again is answered again but applied once, even after a reconnect", [] {
      TestServer server;
      auto first = server.Join(1, "worker-0");
      RequireOk(first->Call(MessageType::kDefineSparse, DefineOne(), 1).status);
      RequireOk(first->Call(MessageType::kPush, PushOne(), 2).status);
      RequireOk(first->Call(MessageType::kPush, PushOne(), 2).status);
      first->Close();
      auto second = server.Join(1, "worker-0");
      const auto again = second->Call(MessageType::kPush, PushOne(), 2);
      ExpectEqual(RequireOk(DecodePushResult(again.body)).applied, 1u);
      ExpectEqual(ValueOf(*second), -1.0f);
      RequireOk(second->Call(MessageType::kPush, PushOne(), 3).status);
      ExpectEqual(ValueOf(*second), -2.0f);
    });

const Test kDuplicateWithRows(
    "rows requested with a push are read once; a retry gets the same", [] {
      TestServer server;
      auto first = server.Join(1, "worker-0");
      RequireOk(first->Call(MessageType::kDefineSparse, DefineOne(), 1).status);
      PushRequest request;
      request.sections.push_back({"t", false, false, false, 1, 1, kOneKey, kOne});
      PushRequest::Section wants;
      wants.table = "t";
      wants.dim = 1;
      wants.count = 1;
      wants.keys = kOneKey;
      wants.wants_rows = true;
      request.sections.push_back(wants);
      const auto told = first->Call(MessageType::kPush, Encode(request), 2);
      Require(told.body.size() == kPushResultBytes + 8);
      float value = 0;
      std::memcpy(&value, told.body.data() + kPushResultBytes, sizeof(value));
      ExpectEqual(value, -1.0f);
      first->Close();
      auto second = server.Join(1, "worker-0");
      Expect(second->Call(MessageType::kPush, Encode(request), 2).body == told.body);
      const auto stats = second->Call(MessageType::kStats, {});
      ExpectEqual(RequireOk(DecodeStats(stats.body))["table.t.rows_pulled"], 1.0);
    });

const Test kConcurrentDuplicates("the same push on two connections at once is applied once", [] {
  TestServer server;
  auto a = server.Join(1, "worker-0");
  auto b = server.Join(1, "worker-0");
  RequireOk(a->Call(MessageType::kDefineSparse, DefineOne(), 1).status);
  constexpr std::uint64_t kPushes = 300;
  const auto push_all = [&](WireClient& client) {
    for (std::uint64_t i = 0; i < kPushes; ++i)
      client.Request(MessageType::kPush, PushOne(), 2 + i);
  };
  {
    std::jthread first([&] { push_all(*a); });
    std::jthread second([&] { push_all(*b); });
  }
  auto reader = server.Join(9, "reader");
  // Each push is answered on the connection of its newest try, so there are at least as many
  // replies as pushes; the version shows how many were applied.
  RequireOk(
      reader->Call(MessageType::kWaitVersion, Encode(TableRequest{"t", kPushes, 0, 0})).status);
  ExpectEqual(ValueOf(*reader), -static_cast<float>(kPushes));
  ExpectEqual(server.server->Stats()["table.t.version"], static_cast<double>(kPushes));
});

const Test kBarrierRetry("a barrier retried on a new connection counts once and answers there", [] {
  TestServer server;
  auto first = server.Join(1, "worker-0");
  first->Request(MessageType::kBarrier, Encode(BarrierRequest{"b", 2}), 1);
  first->Request(MessageType::kHeartbeat, {});
  first->ReadReply();
  first->Close();
  auto retry = server.Join(1, "worker-0");
  retry->Request(MessageType::kBarrier, Encode(BarrierRequest{"b", 2}), 1);
  retry->Request(MessageType::kHeartbeat, {});
  Expect(retry->ReadReply().header.type == MessageType::kHeartbeat, "the barrier still waits");
  auto other = server.Join(2, "worker-1");
  RequireOk(other->Call(MessageType::kBarrier, Encode(BarrierRequest{"b", 2}), 1).status);
  const auto reply = retry->ReadReply();
  Expect(reply.header.type == MessageType::kBarrier, "the retry is answered");
  RequireOk(reply.status);
});

const Test kBarrierDeadline("a barrier ends at its deadline and reports who arrived", [] {
  TestServer server;
  auto client = server.Join(1, "worker-0");
  const auto status =
      client->Call(MessageType::kBarrier, Encode(BarrierRequest{"epoch-3", 3}), 1, 50).status;
  ExpectCode(status, Code::kDeadlineExceeded);
  ExpectEqual(status.message(), "barrier 'epoch-3': 1 of 3 arrived within 0.05 s (worker-0)");
});

const Test kLost("a client that vanishes is named, counted and breaks its barriers", [] {
  TestServer server(QuickToLose());
  auto control = server.Join(1, "worker-1", true);
  auto data = server.Join(1, "worker-1");
  data->Request(MessageType::kBarrier, Encode(BarrierRequest{"b", 3}), 1);
  auto survivor = server.Join(2, "worker-0");
  survivor->Request(MessageType::kBarrier, Encode(BarrierRequest{"b", 3}), 1);
  control->Close();
  data->Close();
  const auto status = survivor->ReadReply().status;
  ExpectCode(status, Code::kPeerLost);
  const std::string lost = "barrier 'b': member 'worker-1' was lost: silent for 1";
  Expect(status.message().find(lost) == 0, status.message());
  const std::string line = server.log->Await("considered lost");
  Expect(line.find("client 'worker-1' (127.0.0.1:") == 0, line);
  Expect(line.find("silent for 1") != std::string::npos, line);
  ExpectEqual(server.server->Stats()["server.clients_lost"], 1.0);
});

const Test kSilent("a client whose heartbeats stop is lost even with open connections", [] {
  TestServer server(QuickToLose());
  auto control = server.Join(1, "worker-1", true);
  server.log->Await("client 'worker-1'");
  Expect(control->AwaitClose());
  auto back = server.Join(1, "worker-1", true);
  server.log->Await("is back");
  ExpectEqual(server.server->Stats()["server.clients"], 1.0);
});

const Test kNeverBegan("a client that falls silent before its first heartbeat is lost too", [] {
  TestServer server(QuickToLose());
  auto data = server.Join(1, "worker-1", false);
  server.log->Await("client 'worker-1'");
  ExpectEqual(server.server->Stats()["server.clients_lost"], 1.0);
});

const Test kGoodbye("a client that says goodbye is not reported as lost", [] {
  TestServer server(QuickToLose());
  auto leaving = server.Join(1, "worker-1", true);
  RequireOk(leaving->Call(MessageType::kGoodbye, {}).status);
  leaving->Close();
  // The other's loss shows that the time has passed.
  auto silent = server.Join(2, "worker-2", true);
  server.log->Await("client 'worker-2'");
  ExpectEqual(server.server->Stats()["server.clients_lost"], 1.0);
});

const Test kRememberedAfterLoss("a lost client that comes back finds its replies", [] {
  TestServer server(QuickToLose());
  auto control = server.Join(1, "worker-1", true);
  RequireOk(control->Call(MessageType::kDefineSparse, DefineOne(), 1).status);
  RequireOk(control->Call(MessageType::kPush, PushOne(), 2).status);
  control->Close();
  server.log->Await("considered lost");
  auto back = server.Join(1, "worker-1", true);
  RequireOk(back->Call(MessageType::kPush, PushOne(), 2).status);
  ExpectEqual(ValueOf(*back), -1.0f);
});

const Test kNotReading("a client that reads no replies is disconnected and delays nobody", [] {
  TestServer server(Quick());
  auto healthy = server.Join(2, "healthy");
  SparseSpec spec;
  spec.name = "wide";
  spec.dim = 4096;
  RequireOk(healthy->Call(MessageType::kDefineSparse, Encode(spec), 1).status);
  auto greedy = server.Join(1, "greedy");
  const std::vector<Key> keys(1000, 7);
  PullRequest request;
  request.mode = PullMode::kInferZeros;
  request.sections.push_back({"wide", false, 4096, keys.size(), 0, keys});
  const Body pull = Encode(request);
  for (int i = 0; i < 4; ++i) greedy->Request(MessageType::kPull, pull);
  std::atomic<bool> closed{false};
  std::jthread watcher([&] {
    server.log->Await("read none of its replies");
    closed = true;
  });
  while (!closed) RequireOk(healthy->Call(MessageType::kHeartbeat, {}).status);
});

#ifdef __linux__
std::size_t NumThreads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

const Test kIdle("500 idle connections cost no thread", [] {
  TestServer server;
  auto first = server.Join(1, "first");
  const std::size_t before = NumThreads();
  std::vector<std::unique_ptr<WireClient>> idle;
  for (std::uint64_t i = 0; i < 500; ++i) idle.push_back(server.Join(100 + i, "idle"));
  ExpectEqual(NumThreads(), before);
  ExpectEqual(server.server->Stats()["server.connections"], 501.0);
  RequireOk(first->Call(MessageType::kHeartbeat, {}).status);
  RequireOk(idle.back()->Call(MessageType::kHeartbeat, {}).status);
});
#endif

// Sanitizers need more address space than any limit leaves.
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
const Test kNoThreads("a server that gets too few threads fails to start and leaves none running",
                      [] {
                        const std::size_t before = NumThreads();
                        std::uint64_t pages = 0;
                        std::ifstream("/proc/self/statm") >> pages;
                        rlimit old{};
                        Require(::getrlimit(RLIMIT_AS, &old) == 0, "cannot read the limit");
                        rlimit tight = old;
                        tight.rlim_cur =
                            pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (256u << 20);
                        ServerOptions options;
                        options.security = TestSecurity(TransportKind::kPlain);
                        options.num_threads = 10'000;
                        Require(::setrlimit(RLIMIT_AS, &tight) == 0, "cannot set the limit");
                        const Status status = Server::Start(options).status();
                        Require(::setrlimit(RLIMIT_AS, &old) == 0, "cannot restore the limit");
                        ExpectCode(status, Code::kIo);
                        Expect(status.message().find("threads") != std::string::npos,
                               status.message());
                        ExpectEqual(NumThreads(), before);
                      });
#endif

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
