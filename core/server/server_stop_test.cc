// What happens to work in progress when a server stops.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/server.h"
#include "testing/check.h"
#include "testing/test_server.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

constexpr std::uint32_t kDim = 64;
constexpr std::uint64_t kRowsPerPush = 256;

SparseSpec Wide() {
  SparseSpec spec;
  spec.name = "wide";
  spec.dim = kDim;
  spec.optimizer.learning_rate = 1.0;
  return spec;
}

std::vector<Key> KeysOf(std::uint64_t client, std::uint64_t sequence) {
  std::vector<Key> keys(kRowsPerPush);
  for (std::uint64_t i = 0; i < kRowsPerPush; ++i) {
    keys[i] = (client << 48) + sequence * kRowsPerPush + i;
  }
  return keys;
}

// The outcome of one client's pushes, each to rows of its own.
struct Outcome {
  std::vector<std::uint64_t> applied;
  std::vector<std::uint64_t> refused;     // with kShuttingDown
  std::vector<std::uint64_t> unanswered;  // sent, completely or not, before the connection closed
  bool sound = false;                     // there was no other answer
};

// Keeps a few pushes in flight until the server closes the connection.
void PushUntilClosed(WireClient& client, std::uint64_t id, std::atomic<std::uint64_t>& answered,
                     Outcome& outcome) {
  constexpr std::uint64_t kInFlight = 4;
  const std::vector<float> gradients(kRowsPerPush * kDim, -1.0f);
  std::uint64_t next = 1;
  std::uint64_t read = 1;
  bool open = true;
  while (open || read < next) {
    if (open && next - read < kInFlight) {
      const auto keys = KeysOf(id, next);
      PushRequest push;
      push.sections.push_back({"wide", false, true, false, kDim, kRowsPerPush, keys, gradients});
      const Body body = Encode(push);
      FrameHeader header;
      header.type = MessageType::kPush;
      header.sequence = header.request_id = next++;
      header.acked_below = read;
      header.body_bytes = static_cast<std::uint32_t>(body.size());
      std::vector<std::byte> frame(kFrameHeaderBytes);
      EncodeFrameHeader(header, std::span<std::byte, kFrameHeaderBytes>(frame));
      frame.insert(frame.end(), body.begin(), body.end());
      open = client.SendBytes(frame);
      continue;
    }
    const auto reply = client.TryReadReply();
    if (!reply) {
      for (; read < next; ++read) outcome.unanswered.push_back(read);
      break;
    }
    Require(reply->header.sequence == read, "replies out of order");
    if (!reply->status.ok()) ExpectCode(reply->status, Code::kShuttingDown);
    (reply->status.ok() ? outcome.applied : outcome.refused).push_back(read++);
    answered.fetch_add(1);
    answered.notify_all();
  }
  outcome.sound = true;
}

// The rows that hold the push's values exactly once; rows in any other state fail the test.
std::uint64_t RowsApplied(TableSet& tables, std::uint64_t client, std::uint64_t sequence) {
  const auto keys = KeysOf(client, sequence);
  std::vector<float> values(keys.size() * kDim);
  const auto table = RequireOk(tables.Sparse("wide"));
  RequireOk(table->Pull(keys, PullMode::kInferZeros, 0, values));
  std::uint64_t rows = 0;
  for (std::size_t i = 0; i < values.size(); i += kDim) {
    Require(values[i] == 0.0f || values[i] == 1.0f, "a push was applied twice");
    rows += values[i] == 1.0f ? 1 : 0;
  }
  return rows;
}

const Test kPushes("pushes during a stop are applied if and only if answered ok", [] {
  constexpr std::uint64_t kClients = 6;
  TestServer server;
  RequireOk(server.server->tables().Define(Wide()));
  std::vector<Outcome> outcomes(kClients);
  std::atomic<std::uint64_t> answered{0};
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t id = 0; id < kClients; ++id) {
      threads.emplace_back([&, id] {
        try {
          auto client = server.Join(id + 1, "worker-" + std::to_string(id));
          PushUntilClosed(*client, id, answered, outcomes[id]);
        } catch (const RequirementFailed&) {
          answered.fetch_add(1000);  // so that nobody waits for this one
          answered.notify_all();
        }
      });
    }
    // Enough for all clients to have requests in flight, which they then keep up.
    for (std::uint64_t now = answered; now < 60; now = answered) answered.wait(now);
    server.server->Stop();
  }
  std::uint64_t applied = 0;
  TableSet& tables = server.server->tables();
  for (std::uint64_t id = 0; id < kClients; ++id) {
    const Outcome& outcome = outcomes[id];
    Expect(outcome.sound, "a client got an unexpected answer");
    for (const auto sequence : outcome.applied) {
      ExpectEqual(RowsApplied(tables, id, sequence), kRowsPerPush);
    }
    for (const auto* without : {&outcome.refused, &outcome.unanswered}) {
      for (const auto sequence : *without) ExpectEqual(RowsApplied(tables, id, sequence), 0u);
    }
    applied += outcome.applied.size();
  }
  ExpectEqual(RequireOk(tables.Version("wide")), applied);
  ExpectEqual(RequireOk(tables.Sparse("wide"))->Stats().rows, applied * kRowsPerPush);
});

// A table whose shrinking takes far longer than any request.
void FillLarge(TableSet& tables) {
  SparseSpec spec = Wide();
  spec.name = "large";
  spec.eviction.min_norm = 1e-30F;  // every row is examined, none removed
  RequireOk(tables.Define(spec));
  std::vector<float> rows(kRowsPerPush * kDim);
  for (std::uint64_t part = 0; part < 400; ++part) {
    RequireOk(RequireOk(tables.Sparse("large"))->Pull(KeysOf(1, part), PullMode::kTrain, 0, rows));
  }
}

Body ShrinkLarge() { return Encode(TableRequest{"large", 5, 0, 0}); }

// Requests a shrink `count` times and returns when the server has received all of them.
std::unique_ptr<WireClient> AskForShrinks(TestServer& server, std::uint64_t count,
                                          const std::function<void(const WireReply&)>& take) {
  auto client = server.Join(7, "worker-0");
  for (std::uint64_t sequence = 1; sequence <= count; ++sequence) {
    client->Request(MessageType::kShrink, ShrinkLarge(), sequence);
  }
  client->Request(MessageType::kHeartbeat, {});
  for (;;) {
    const WireReply reply = client->ReadReply();
    if (reply.header.type == MessageType::kHeartbeat) return client;
    take(reply);
  }
}

const Test kJobs("jobs accepted before the stop finish and are answered", [] {
  TestServer server;
  FillLarge(server.server->tables());
  int answered = 0;
  const auto take = [&](const WireReply& reply) {
    RequireOk(reply.status);
    ++answered;
  };
  auto client = AskForShrinks(server, 50, take);
  std::jthread stopper([&] { server.server->Stop(); });
  while (auto reply = client->TryReadReply()) take(*reply);
  ExpectEqual(answered, 50);
});

const Test kGivenUp("jobs that outlast the drain time are cancelled with an error", [] {
  constexpr std::uint64_t kShrinks = 200;
  ServerOptions options;
  options.drain_timeout_s = 0;
  TestServer server(options);
  FillLarge(server.server->tables());
  std::uint64_t done = 0;
  std::uint64_t given_up = 0;
  const auto take = [&](const WireReply& reply) {
    if (!reply.status.ok()) ExpectCode(reply.status, Code::kShuttingDown);
    ++(reply.status.ok() ? done : given_up);
  };
  auto client = AskForShrinks(server, kShrinks, take);
  std::jthread stopper([&] { server.server->Stop(); });
  while (auto reply = client->TryReadReply()) take(*reply);
  stopper.join();
  ExpectEqual(done + given_up, kShrinks);
  Expect(given_up > 0, "no job was cancelled");
  server.log->Await("was cancelled");
});

const Test kAlone("jobs of a disconnected client do not delay the stop", [] {
  ServerOptions options;
  options.drain_timeout_s = 0;
  TestServer server(options);
  FillLarge(server.server->tables());
  auto client = AskForShrinks(server, 200, [](const WireReply&) {});
  client->Close();
  server.server->Stop();
  server.log->Await("was cancelled");
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
