// What becomes of work under way when a server stops.
#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "server/server.h"
#include "table/dump.h"
#include "testing/check.h"
#include "testing/scratch_directory.h"
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

// How one client's pushes, each of rows of its own, came out.
struct Outcome {
  std::vector<std::uint64_t> applied;
  std::vector<std::uint64_t> refused;     // with kShuttingDown
  std::vector<std::uint64_t> unanswered;  // sent, wholly or not, before the connection closed
  bool sound = false;                     // no other answer came
};

// Pushes with a few requests in flight at all times until the server closes the connection.
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

// Rows of the push that hold what it brought, once; rows in any other state fail the test.
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

const Test kPushes("a stop amid pushes: applied if and only if answered ok", [] {
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
    // Enough that all clients have requests in flight, which they then keep up.
    for (std::uint64_t now = answered; now < 60; now = answered) answered.wait(now);
    server.server->Stop();
  }
  std::uint64_t applied = 0;
  TableSet& tables = server.server->tables();
  for (std::uint64_t id = 0; id < kClients; ++id) {
    const Outcome& outcome = outcomes[id];
    Expect(outcome.sound, "a client got an answer it should not");
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

// A table of some 100 MB: writing it takes far longer than any request.
void FillLarge(TableSet& tables) {
  DenseSpec spec;
  spec.name = "large";
  spec.size = 25'000'000;
  RequireOk(tables.Define(spec));
}

const Test kJobs("jobs taken before the stop are finished and answered", [] {
  ScratchDirectory scratch("sparsefleet-stop");
  TestServer server;
  RequireOk(server.server->tables().Define(Wide()));
  FillLarge(server.server->tables());
  auto client = server.Join(7, "worker-0");
  // The others wait behind the save, so most are under way when the stop comes.
  client->Request(MessageType::kSave, EncodeText(scratch.path()), 1);
  for (std::uint64_t sequence = 2; sequence <= 51; ++sequence) {
    client->Request(MessageType::kShrink, Encode(TableRequest{"wide", 5, 0, 0}), sequence);
  }
  client->Request(MessageType::kHeartbeat, {});
  int answered = 0;
  const auto take = [&](const WireReply& reply) {
    RequireOk(reply.status);
    if (reply.header.type == MessageType::kHeartbeat) return true;
    ++answered;
    return false;
  };
  while (!take(client->ReadReply())) {
  }
  std::jthread stopper([&] { server.server->Stop(); });
  while (auto reply = client->TryReadReply()) take(*reply);
  ExpectEqual(answered, 51);
  stopper.join();
  RequireOk(LoadTables(server.server->tables(), scratch.path(), 0, 1));
});

const Test kGivenUp("jobs that outlast the drain time are given up, told so and leave no file", [] {
  constexpr std::uint64_t kSaves = 20;
  ScratchDirectory scratch("sparsefleet-stop");
  ServerOptions options;
  options.drain_timeout_s = 0;
  TestServer server(options);
  FillLarge(server.server->tables());
  auto client = server.Join(7, "worker-0");
  for (std::uint64_t sequence = 1; sequence <= kSaves; ++sequence) {
    client->Request(MessageType::kSave, EncodeText(scratch.path() + "/" + std::to_string(sequence)),
                    sequence);
  }
  client->Request(MessageType::kHeartbeat, {});
  std::uint64_t saved = 0;
  std::uint64_t given_up = 0;
  const auto take = [&](const WireReply& reply) {
    if (reply.header.type == MessageType::kHeartbeat) return true;
    if (!reply.status.ok()) ExpectCode(reply.status, Code::kShuttingDown);
    ++(reply.status.ok() ? saved : given_up);
    const std::string directory = scratch.path() + "/" + std::to_string(reply.header.sequence);
    const bool empty = !std::filesystem::exists(directory) || std::filesystem::is_empty(directory);
    ExpectEqual(empty, !reply.status.ok());
    return false;
  };
  while (!take(client->ReadReply())) {
  }
  std::jthread stopper([&] { server.server->Stop(); });
  while (auto reply = client->TryReadReply()) take(*reply);
  stopper.join();
  ExpectEqual(saved + given_up, kSaves);
  Expect(given_up > 0, "no save was given up");
  server.log->Await("given up");
});

const Test kAlone("a save whose client has gone does not hold up the stop", [] {
  ScratchDirectory scratch("sparsefleet-stop");
  ServerOptions options;
  options.drain_timeout_s = 0;
  TestServer server(options);
  FillLarge(server.server->tables());
  auto client = server.Join(7, "worker-0");
  for (std::uint64_t sequence = 1; sequence <= 200; ++sequence) {
    client->Request(MessageType::kSave, EncodeText(scratch.path()), sequence);
  }
  client->Request(MessageType::kHeartbeat, {});
  while (client->ReadReply().header.type != MessageType::kHeartbeat) {
  }
  client->Close();
  server.server->Stop();
  server.log->Await("given up");
  for (const auto& entry : std::filesystem::directory_iterator(scratch.path())) {
    ExpectEqual(entry.path().extension().string(), ".sfd");
  }
});

const Test kForced("a client that reads no reply is closed when the drain time is over", [] {
  ServerOptions options;
  options.drain_timeout_s = 0.1;
  options.frame_timeout_s = 1000;
  TestServer server(options);
  FillLarge(server.server->tables());
  auto deaf = server.Join(7, "deaf");
  PullRequest request;
  request.sections.push_back({"large", true, 1, 25'000'000, 0, {}});
  const std::uint64_t wanted = PullReplyBytes(request);
  deaf->Request(MessageType::kPull, Encode(request));
  while (server.server->Stats()["server.bytes_out"] < 10'000) std::this_thread::yield();
  server.server->Stop();
  server.log->Await("1 connections were not drained in time");
  ExpectEqual(server.server->Stats()["server.connections"], 0.0);
  Expect(server.server->Stats()["server.bytes_out"] < static_cast<double>(wanted),
         "the reply was taken whole, which this test is not about");
  Expect(!deaf->TryReadReply().has_value(), "a reply that was cut off");
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
