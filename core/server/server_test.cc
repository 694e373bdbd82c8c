// A server over real sockets: requests, errors confined to their cause, shutdown.
#include "server/server.h"

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "testing/check.h"
#include "testing/test_server.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

SparseSpec Spec(const std::string& name, std::uint32_t dim) {
  SparseSpec spec;
  spec.name = name;
  spec.dim = dim;
  spec.optimizer.learning_rate = 1.0;
  return spec;
}

Body PullOf(std::string_view table, std::uint32_t dim, std::span<const Key> keys) {
  PullRequest request;
  request.sections.push_back({table, false, dim, keys.size(), 0, keys});
  return Encode(request);
}

Body PushOf(std::string_view table, std::uint32_t dim, std::span<const Key> keys,
            std::span<const float> values) {
  PushRequest request;
  request.sections.push_back({table, false, false, false, dim, keys.size(), keys, values});
  return Encode(request);
}

std::vector<float> Floats(const Body& body) {
  std::vector<float> values(body.size() / sizeof(float));
  std::memcpy(values.data(), body.data(), body.size());
  return values;
}

const std::vector<Key> kTwoKeys = {1, 0xffffffffffffffffULL};

void RoundTrip(TransportKind kind) {
  ServerOptions options;
  options.security = TestSecurity(kind);
  TestServer server(options);
  auto client = server.Join(7, "worker-0");
  RequireOk(client->Call(MessageType::kDefineSparse, Encode(Spec("ads", 2)), 1).status);
  const std::vector<float> gradients = {1, 2, 3, 4};
  auto pushed = client->Call(MessageType::kPush, PushOf("ads", 2, kTwoKeys, gradients), 2);
  RequireOk(pushed.status);
  ExpectEqual(RequireOk(DecodePushResult(pushed.body)).applied, 2u);
  auto pulled = client->Call(MessageType::kPull, PullOf("ads", 2, kTwoKeys));
  RequireOk(pulled.status);
  Expect(Floats(pulled.body) == std::vector<float>{-1, -2, -3, -4}, "pulled rows");
  auto version = client->Call(MessageType::kVersion, Encode(TableRequest{"ads", 0, 0, 0}));
  ExpectEqual(RequireOk(DecodeNumber(version.body)), 1u);
}

const Test kPlain("rows pushed are pulled back over the plain transport",
                  [] { RoundTrip(TransportKind::kPlain); });
const Test kTls("rows pushed are pulled back over TLS", [] { RoundTrip(TransportKind::kTls); });

const Test kBadRequests("a bad request gets a typed error and the connection stays usable", [] {
  TestServer server;
  auto client = server.Join(7, "worker-0");
  RequireOk(client->Call(MessageType::kDefineSparse, Encode(Spec("ads", 10)), 1).status);
  const auto unknown = client->Call(MessageType::kPull, PullOf("nope", 10, kTwoKeys)).status;
  ExpectCode(unknown, Code::kUnknownTable);
  const auto width = client->Call(MessageType::kPull, PullOf("ads", 8, kTwoKeys)).status;
  ExpectCode(width, Code::kShapeMismatch);
  ExpectEqual(width.message(),
              "table 'ads': the pull asks for width 8, but the table has width 10");
  const std::vector<float> gradients(16, 1.0f);
  const auto push =
      client->Call(MessageType::kPush, PushOf("ads", 8, kTwoKeys, gradients), 2).status;
  ExpectCode(push, Code::kShapeMismatch);
  ExpectEqual(push.message(), "table 'ads': the push has width 8, but the table has width 10");
  const auto conflict = client->Call(MessageType::kDefineSparse, Encode(Spec("ads", 9)), 3).status;
  ExpectCode(conflict, Code::kTableConflict);
  ExpectCode(client->Call(MessageType::kNextCut, Encode(NextCutRequest{1, 10}), 4).status,
             Code::kNotFound);
  RequireOk(client->Call(MessageType::kPull, PullOf("ads", 10, kTwoKeys)).status);
});

const Test kHalf("a push to two tables, one of them unknown, applies nothing", [] {
  TestServer server;
  auto client = server.Join(7, "worker-0");
  RequireOk(client->Call(MessageType::kDefineSparse, Encode(Spec("ads", 1)), 1).status);
  const std::vector<float> gradients = {1, 1};
  PushRequest request;
  request.sections.push_back({"ads", false, false, false, 1, 2, kTwoKeys, gradients});
  request.sections.push_back({"nope", false, false, false, 1, 2, kTwoKeys, gradients});
  ExpectCode(client->Call(MessageType::kPush, Encode(request), 2).status, Code::kUnknownTable);
  ExpectEqual(server.server->Stats()["table.ads.rows"], 0.0);
});

const Test kHugeReply("a pull whose reply would be too large is rejected before it allocates", [] {
  ServerOptions options;
  options.max_frame_bytes = 64 << 10;
  TestServer server(options);
  auto client = server.Join(7, "worker-0");
  RequireOk(client->Call(MessageType::kDefineSparse, Encode(Spec("ads", 4096)), 1).status);
  const std::vector<Key> keys(100, 5);
  ExpectCode(client->Call(MessageType::kPull, PullOf("ads", 4096, keys)).status, Code::kTooLarge);
});

const Test kDenseLimit(
    "dense tables stay within the limit together, including optimizer state", [] {
      ServerOptions options;
      options.max_dense_bytes = 100'000;
      TestServer server(options);
      auto client = server.Join(7, "worker-0");
      std::uint64_t sequence = 1;
      const auto define = [&](const std::string& name, std::uint64_t size, OptimizerKind kind) {
        DenseSpec spec;
        spec.name = name;
        spec.size = size;
        spec.optimizer.kind = kind;
        return client->Call(MessageType::kDefineDense, Encode(spec), sequence++).status;
      };
      ExpectCode(define("a", 25'001, OptimizerKind::kSgd), Code::kTooLarge);
      ExpectCode(define("a", 10'000, OptimizerKind::kAdam), Code::kTooLarge);
      RequireOk(define("a", 15'000, OptimizerKind::kSgd));
      RequireOk(define("a", 15'000, OptimizerKind::kSgd));
      ExpectCode(define("b", 10'001, OptimizerKind::kSgd), Code::kTooLarge);
      RequireOk(define("b", 10'000, OptimizerKind::kSgd));
      ExpectCode(define("c", 1, OptimizerKind::kSgd), Code::kTooLarge);
    });

const Test kHelloChecks("a client that expects other servers is refused with both counts", [] {
  ServerOptions options;
  options.index = 1;
  options.num_servers = 2;
  TestServer server(options);
  auto client = server.Connect();
  const auto refused = client->Hello(7, "worker-0", false, 1, 3).status;
  ExpectCode(refused, Code::kInvalidArgument);
  ExpectEqual(refused.message(), "the client expects 3 servers, but this is server 1 of 2");
  Expect(client->AwaitClose());
  auto other = server.Connect();
  ExpectCode(other->Hello(7, "worker-0", false, 0, 2).status, Code::kInvalidArgument);
  auto right = server.Connect();
  RequireOk(right->Hello(7, "worker-0", false, 1, 2).status);
});

const Test kNoHello("a request before the hello closes the connection with an error", [] {
  TestServer server;
  auto client = server.Connect();
  ExpectCode(client->Call(MessageType::kStats, {}).status, Code::kProtocol);
  Expect(client->AwaitClose());
});

const Test kStats("statistics cover the server and its tables", [] {
  TestServer server;
  auto client = server.Join(7, "worker-0");
  RequireOk(client->Call(MessageType::kDefineSparse, Encode(Spec("ads", 2)), 1).status);
  RequireOk(client->Call(MessageType::kPull, PullOf("ads", 2, kTwoKeys)).status);
  auto stats = RequireOk(DecodeStats(client->Call(MessageType::kStats, {}).body));
  ExpectEqual(stats["table.ads.rows"], 2.0);
  ExpectEqual(stats["server.clients"], 1.0);
  ExpectEqual(stats["server.connections"], 1.0);
  ExpectEqual(stats["server.requests.pull"], 1.0);
  ExpectEqual(stats["server.requests.define_sparse_table"], 1.0);
  ExpectEqual(stats["server.requests_total"], 4.0);
  Expect(stats["server.bytes_in"] > 0 && stats["server.bytes_out"] > 0, "bytes are counted");
  Expect(stats.contains("server.uptime_s") && stats.contains("server.threads"), "keys");
});

const Test kCuts("a cut returns every row once, in frames of the requested size", [] {
  TestServer server;
  auto client = server.Join(7, "worker-0");
  RequireOk(client->Call(MessageType::kDefineSparse, Encode(Spec("ads", 1)), 1).status);
  std::vector<Key> keys(100);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  RequireOk(client->Call(MessageType::kPull, PullOf("ads", 1, keys)).status);
  std::uint64_t sequence = 2;
  auto opened =
      client->Call(MessageType::kOpenCut, Encode(TableRequest{"ads", 0, 0, 0}), sequence++);
  const std::uint64_t cut = RequireOk(DecodeNumber(opened.body));
  std::size_t rows = 0;
  for (;;) {
    auto reply = client->Call(MessageType::kNextCut, Encode(NextCutRequest{cut, 7}), sequence++);
    RequireOk(reply.status);
    auto batch = RequireOk(DecodeRows(reply.body));
    Expect(batch.rows.keys.size() <= 7, "at most max_rows");
    if (batch.rows.keys.empty()) break;
    rows += batch.rows.keys.size();
  }
  ExpectEqual(rows, keys.size());
  RequireOk(client->Call(MessageType::kCloseCut, EncodeNumber(cut), sequence++).status);
  ExpectCode(client->Call(MessageType::kCloseCut, EncodeNumber(cut), sequence++).status,
             Code::kNotFound);
});

const Test kPipelined("requests sent without waiting are all answered, in order", [] {
  ServerOptions options;
  options.security = TestSecurity(TransportKind::kTls);
  TestServer server(options);
  auto client = server.Join(7, "worker-0");
  std::vector<std::uint64_t> ids;
  for (int i = 0; i < 300; ++i) ids.push_back(client->Request(MessageType::kHeartbeat, {}));
  for (const std::uint64_t id : ids) ExpectEqual(client->ReadReply().header.request_id, id);
});

const Test kLargeFrames("a push larger than the first buffer arrives intact", [] {
  TestServer server;
  auto client = server.Join(7, "worker-0");
  RequireOk(client->Call(MessageType::kDefineSparse, Encode(Spec("wide", 4096)), 1).status);
  std::vector<Key> keys(700);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  const std::vector<float> gradients(keys.size() * 4096, 0.5f);
  auto pushed = client->Call(MessageType::kPush, PushOf("wide", 4096, keys, gradients), 2);
  ExpectEqual(RequireOk(DecodePushResult(pushed.body)).applied, keys.size());
  auto pulled = client->Call(MessageType::kPull, PullOf("wide", 4096, keys));
  RequireOk(pulled.status);
  Expect(Floats(pulled.body) == std::vector<float>(gradients.size(), -0.5f), "all rows");
});

const Test kShutdownRequest("a shutdown request is answered, then reported to the owner", [] {
  TestServer server;
  Expect(!server.server->WaitForShutdownRequest(0.0), "not yet");
  auto client = server.Join(7, "worker-0");
  RequireOk(client->Call(MessageType::kShutdown, {}).status);
  Expect(server.server->WaitForShutdownRequest(20.0), "asked");
  server.server->Stop();
  Expect(client->AwaitClose());
});

const Test kStopEndsWaits("stop ends waits with SHUTTING_DOWN and answers every request", [] {
  TestServer server;
  auto waiting = server.Join(7, "worker-0");
  waiting->Request(MessageType::kBarrier, Encode(BarrierRequest{"b", 2}), 1);
  waiting->Request(MessageType::kGetNote, Encode(NoteRequest{"n", "", true}));
  // The reply to a later request shows that both are waiting.
  waiting->Request(MessageType::kHeartbeat, {});
  ExpectEqual(static_cast<int>(waiting->ReadReply().header.type),
              static_cast<int>(MessageType::kHeartbeat));
  std::jthread stopper([&] { server.server->Stop(); });
  ExpectCode(waiting->ReadReply().status, Code::kShuttingDown);
  ExpectCode(waiting->ReadReply().status, Code::kShuttingDown);
  Expect(waiting->AwaitClose());
  stopper.join();
  server.server->Stop();
});

const Test kTwoServers("two servers in one process keep their tables apart", [] {
  TestServer first;
  TestServer second;
  auto a = first.Join(7, "worker-0");
  auto b = second.Join(7, "worker-0");
  RequireOk(a->Call(MessageType::kDefineSparse, Encode(Spec("ads", 2)), 1).status);
  ExpectCode(b->Call(MessageType::kPull, PullOf("ads", 2, kTwoKeys)).status, Code::kUnknownTable);
  RequireOk(a->Call(MessageType::kPull, PullOf("ads", 2, kTwoKeys)).status);
  first.server->Stop();
  RequireOk(b->Call(MessageType::kHeartbeat, {}).status);
});

const Test kTaken("the error for an endpoint in use names it", [] {
  TestServer first;
  ServerOptions options;
  options.security = TestSecurity(TransportKind::kPlain);
  options.port = first.server->port();
  auto second = Server::Start(options);
  ExpectCode(second.status(), Code::kIo);
  Expect(second.status().message().find(std::to_string(options.port)) != std::string::npos,
         second.status().message());
});

const Test kBadOptions("impossible options are rejected", [] {
  ServerOptions options;
  options.security = TestSecurity(TransportKind::kPlain);
  options.index = 2;
  options.num_servers = 2;
  ExpectCode(Server::Start(options).status(), Code::kInvalidArgument);
  options.index = 0;
  options.peer_timeout_s = 0;
  ExpectCode(Server::Start(options).status(), Code::kInvalidArgument);
  options.peer_timeout_s = 1;
  options.security.job_key = "short";
  ExpectCode(Server::Start(options).status(), Code::kInvalidArgument);
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
