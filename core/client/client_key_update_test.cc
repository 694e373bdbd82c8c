// Requests over TLS connections that renew their keys every few records.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/client.h"
#include "server/server.h"
#include "testing/channel_pair.h"
#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

constexpr std::uint32_t kDim = 64;
constexpr std::uint64_t kRows = 500;  // 128 KB per push, eight records
constexpr int kSteps = 40;
constexpr int kThreads = 4;
constexpr double kTimeout_s = 60.0;

const Test kConcurrent("concurrent pushes and pulls survive hundreds of key updates", [] {
  ServerOptions server_options;
  server_options.security = Security(TransportKind::kTls);
  server_options.security.tls_records_per_key = 3;
  server_options.num_threads = 2;
  const auto server = RequireOk(Server::Start(server_options));
  ClientOptions options;
  options.endpoints = {"127.0.0.1:" + std::to_string(server->port())};
  options.security = server_options.security;
  const auto client = RequireOk(Client::Connect(options));
  SparseSpec spec;
  spec.name = "t";
  spec.dim = kDim;
  spec.optimizer.learning_rate = 1.0;
  RequireOk(client->Define(spec, kTimeout_s));

  const auto work = [&](std::uint64_t thread) {
    std::vector<Key> keys(kRows);
    for (std::uint64_t i = 0; i < kRows; ++i) keys[i] = thread * kRows + i;
    const auto pull = [&] {
      std::vector<float> out(kRows * kDim);
      PullSection section{"t", keys, out};
      RequireOk(client->Pull({&section, 1}, PullMode::kTrain, 1, kTimeout_s));
      return out;
    };
    const std::vector<float> gradients(kRows * kDim, -1.0f);
    const PushSection push{"t", keys, gradients};
    const auto first = pull();
    for (int step = 1; step <= kSteps; ++step) {
      RequireOk(client->Push({&push, 1}, 1, kTimeout_s));
      const auto rows = pull();
      float furthest = 0;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        furthest = std::max(furthest, std::abs(rows[i] - first[i] - static_cast<float>(step)));
      }
      if (!Expect(furthest < 0.01f, "a push was lost, doubled or changed")) return;
    }
  };
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  }
  // A reply to a pull has eight records, so at least two updates.
  Expect(server->Stats()["server.tls_key_updates"] > kThreads * kSteps);
  ExpectEqual(server->Stats()["server.requests.push"], 1.0 * kThreads * kSteps);
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
