// Clients that move 16-bit numbers, with real servers.
#include <algorithm>
#include <bit>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "client/client.h"
#include "server/server.h"
#include "store/local_store.h"
#include "testing/check.h"
#include "testing/test_fleet.h"

namespace sparsefleet::testing {
namespace {

constexpr double kTimeout_s = 60;
constexpr std::uint32_t kDim = 3;  // odd, so that sections end between multiples of 8
constexpr std::uint64_t kTower = 10'001;

std::unique_ptr<Client> Connect(const Fleet& fleet, WireDtype dtype,
                                std::string name = "worker-0") {
  ClientOptions options = fleet.Options();
  options.name = std::move(name);
  options.wire_dtype = dtype;
  return RequireOk(Client::Connect(options));
}

// Rows and values start at 0, and a gradient of -1 adds 1.
void DefineTables(Store& store) {
  SparseSpec ads;
  ads.name = "ads";
  ads.dim = kDim;
  ads.initializer = {InitializerKind::kConstant, 0, 0};
  ads.optimizer.kind = OptimizerKind::kSgd;
  ads.optimizer.learning_rate = 1.0;
  RequireOk(store.Define(ads, kTimeout_s));
  DenseSpec tower;
  tower.name = "tower";
  tower.size = kTower;
  tower.min_block_size = 100;
  tower.optimizer = ads.optimizer;
  tower.non_finite = NonFinitePolicy::kRejectRow;
  RequireOk(store.Define(tower, kTimeout_s));
}

std::vector<float> Integers(std::size_t count, std::uint64_t seed) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = static_cast<float>((i * 7 + seed) % 11) - 5.0F;
  }
  return values;
}

std::vector<float> Fractions(std::size_t count, std::uint64_t seed) {
  auto values = Integers(count, seed);
  for (float& value : values) value *= 0.1F;
  return values;
}

// All of the tower and rows 0 to 99, as this store reads them.
std::vector<float> ReadAll(Store& store) {
  std::vector<Key> keys(100);
  std::iota(keys.begin(), keys.end(), Key{0});
  std::vector<float> all(kTower + keys.size() * kDim);
  const auto rows = std::span(all).subspan(kTower);
  const PullSection sections[] = {{"ads", keys, rows},
                                  {"tower", {}, std::span(all).first(kTower), true}};
  RequireOk(store.Pull(sections, PullMode::kTrain, 1, kTimeout_s));
  return all;
}

// Pushes rows and the tower, alone or as a round of one, and returns what the reply brings.
std::vector<float> PushSome(Store& store, std::uint64_t step, bool as_round, bool fractions) {
  std::vector<Key> keys(40);
  std::iota(keys.begin(), keys.end(), Key{step});
  const auto make = fractions ? Fractions : Integers;
  const auto rows = make(keys.size() * kDim, step);
  const auto tower = make(kTower, step + 1);
  // The tower's gradient comes in parts.
  const std::span<const float> parts[] = {std::span(tower).first(4'001),
                                          std::span(tower).subspan(4'001)};
  std::vector<float> found(kTower + keys.size() * kDim);
  std::vector<PushSection> sections(3);
  sections[0].table = "ads";
  sections[0].keys = keys;
  sections[0].gradients = rows;
  sections[1].table = "tower";
  sections[1].dense = true;
  sections[1].parts = parts;
  sections[1].out = std::span(found).first(kTower);
  sections[2].table = "ads";
  sections[2].keys = keys;
  sections[2].out = std::span(found).subspan(kTower);
  auto pushed = as_round ? store.PushRound({"g", 0, 1, false}, step, sections, step, kTimeout_s)
                         : store.Push(sections, step, kTimeout_s);
  RequireOk(pushed.status());
  return found;
}

const Test kIntegers("small integers arrive exactly, alone and in rounds", [] {
  for (const std::uint32_t num_servers : {1U, 3U}) {
    Fleet fleet(num_servers);
    auto client = Connect(fleet, WireDtype::kBf16);
    auto other = Connect(fleet, WireDtype::kFloat32, "worker-1");
    LocalStore local;
    DefineTables(*client);
    DefineTables(local);
    for (std::uint64_t step = 1; step <= 12; ++step) {
      Store& store = step % 4 == 0 ? *other : *client;  // the two may take turns
      const bool as_round = &store == client.get() && step % 2 == 0;
      Expect(PushSome(store, step, as_round, false) == PushSome(local, step, as_round, false),
             "what the reply brought");
      Expect(ReadAll(*client) == ReadAll(local), "what a pull read");
    }
    Expect(ReadAll(*other) == ReadAll(local), "what a client with float32 reads");
  }
});

const Test kRepeats("a push is rounded the same way each time, and by name", [] {
  std::vector<std::vector<float>> found;
  for (const char* name : {"worker-0", "worker-0", "worker-1"}) {
    Fleet fleet(2);
    auto client = Connect(fleet, WireDtype::kBf16, name);
    DefineTables(*client);
    for (std::uint64_t step = 1; step <= 3; ++step) PushSome(*client, step, false, true);
    found.push_back(ReadAll(*Connect(fleet, WireDtype::kFloat32)));
  }
  Expect(found[0] == found[1], "the same name rounds the same way");
  Expect(found[0] != found[2], "another name rounds differently");
});

const Test kUnbiased("tables add up rounded gradients in float32, without drifting away", [] {
  Fleet fleet(1);
  auto client = Connect(fleet, WireDtype::kBf16);
  DefineTables(*client);
  const std::vector<float> gradient(kTower, -0.001F);
  PushSection section;
  section.table = "tower";
  section.dense = true;
  section.gradients = gradient;
  constexpr int kSteps = 64;
  for (int i = 0; i < kSteps; ++i) RequireOk(client->Push({&section, 1}, 0, kTimeout_s).status());
  const auto all = ReadAll(*Connect(fleet, WireDtype::kFloat32));
  const double mean = std::accumulate(all.begin(), all.begin() + kTower, 0.0) / kTower;
  // One rounding errs by less than 2^-7, and 64 x 10,001 of them by far less on average.
  ExpectNear(mean, 0.001 * kSteps, 0.001 * kSteps * 1e-4);
});

const Test kBytes("a pull and a push take half the bytes", [] {
  std::vector<double> in;
  std::vector<double> out;
  for (const WireDtype dtype : {WireDtype::kFloat32, WireDtype::kBf16}) {
    Fleet fleet(1);
    auto client = Connect(fleet, dtype);
    DefineTables(*client);
    // A server counts bytes before it reads the connection's next request.
    const auto count = [&] {
      RequireOk(client->Version("tower", kTimeout_s).status());
      return fleet.server(0).Stats();
    };
    const auto before = count();
    PushSome(*client, 1, false, true);
    const auto after = count();
    in.push_back(after.at("server.bytes_in") - before.at("server.bytes_in"));
    out.push_back(after.at("server.bytes_out") - before.at("server.bytes_out"));
  }
  ExpectNear(in[1] / in[0], 0.5, 0.02);
  ExpectNear(out[1] / out[0], 0.5, 0.02);
});

const Test kNonFinite("a dense gradient with a NaN is skipped by all servers and counted once", [] {
  Fleet fleet(2);
  auto client = Connect(fleet, WireDtype::kBf16);
  DefineTables(*client);
  std::vector<float> gradient(kTower, 0.25F);
  gradient[7] = std::bit_cast<float>(0x7f800001U);  // NaN only in its lower half
  PushSection section;
  section.table = "tower";
  section.dense = true;
  section.gradients = gradient;
  const auto result = RequireOk(client->Push({&section, 1}, 1, kTimeout_s));
  ExpectEqual(result.rejected_non_finite, 1U);
  const auto all = ReadAll(*client);
  Expect(std::ranges::all_of(all, [](float value) { return value == 0; }), "nothing is applied");
});

const Test kChanges("watched changes come in 16 bits", [] {
  Fleet fleet(2);
  auto client = Connect(fleet, WireDtype::kBf16);
  DefineTables(*client);
  RequireOk(client->WatchChanges("ads", kTimeout_s));
  PushSome(*client, 1, false, true);
  auto changes = RequireOk(client->TakeChanges("ads", kTimeout_s));
  RowBatch batch;
  std::size_t num_rows = 0;
  while (RequireOk(changes->Next(1000, batch))) {
    num_rows += batch.keys.size();
    for (const float value : batch.values) {
      Expect((std::bit_cast<std::uint32_t>(value) & 0xffffU) == 0, "more than 16 bits");
    }
    std::vector<float> rows(batch.values.size());
    const PullSection section{"ads", batch.keys, rows};
    RequireOk(client->Pull({&section, 1}, PullMode::kTrain, 1, kTimeout_s));
    Expect(rows == batch.values, "a pull reads the same");
  }
  ExpectEqual(num_rows, 40U);
});

const Test kLane("shared memory moves float32, whatever is asked for", [] {
  Fleet fleet(1, TransportKind::kAuto);
  auto client = Connect(fleet, WireDtype::kBf16);
  LocalStore local;
  DefineTables(*client);
  DefineTables(local);
  if (fleet.server(0).Stats().at("server.lane_connections_total") == 0) return;  // not on Linux
  Expect(PushSome(*client, 1, false, true) == PushSome(local, 1, false, true), "pushed");
  Expect(ReadAll(*client) == ReadAll(local), "pulled");
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
