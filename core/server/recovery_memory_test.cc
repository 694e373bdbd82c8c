// A server that cannot hold its logged pushes in memory when it recovers must not start without
// them.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "client/client.h"
#include "testing/check.h"
#include "testing/faulty_files.h"
#include "testing/test_server.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

// Blocks of rows that are too small for memory of their own are allocated with an alignment.
constexpr std::size_t kRows = 1u << 10;
std::atomic<bool> is_tight = false;

void* Allocate(std::size_t size, std::size_t alignment = alignof(std::max_align_t)) {
  const std::size_t rounded = (size / alignment + 1) * alignment;
  if (void* memory = std::aligned_alloc(alignment, rounded)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return Allocate(size); }
void* operator new[](std::size_t size) { return Allocate(size); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  if (is_tight && size >= kRows) throw std::bad_alloc();
  return Allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

constexpr double kTimeout = 60;
constexpr std::size_t kDim = 8;

ServerOptions Durable(const TemporaryDirectory& place) {
  ServerOptions options;
  options.security = TestSecurity(TransportKind::kPlain);
  options.log_dir = place.path();
  options.durability = Durability::kProcess;
  return options;
}

std::unique_ptr<Client> ConnectTo(const Server& server) {
  ClientOptions options;
  options.endpoints = {"127.0.0.1:" + std::to_string(server.port())};
  options.security = TestSecurity(TransportKind::kPlain);
  options.name = "worker-0";
  return RequireOk(Client::Connect(std::move(options)));
}

const Test kReplay("a logged push that does not fit into memory ends the recovery", [] {
  const TemporaryDirectory place;
  std::vector<Key> keys(2000);
  std::iota(keys.begin(), keys.end(), Key{1});
  const std::vector<float> gradients(keys.size() * kDim, -1.0F);
  {
    const auto server = RequireOk(Server::Start(Durable(place)));
    const auto client = ConnectTo(*server);
    SparseSpec spec;
    spec.name = "t";
    spec.dim = kDim;
    spec.optimizer.kind = OptimizerKind::kSgd;
    spec.optimizer.learning_rate = 1.0;
    RequireOk(client->Define(spec, kTimeout));
    PushSection section;
    section.table = "t";
    section.keys = keys;
    section.gradients = gradients;
    RequireOk(client->Push(std::span(&section, 1), 1, kTimeout));
  }
  is_tight = true;
  const auto tight = Server::Start(Durable(place));
  is_tight = false;
  Require(!tight.ok(), "the server has started without the push");
  ExpectCode(tight.status(), Code::kTooLarge);
  const auto server = RequireOk(Server::Start(Durable(place)));
  const auto client = ConnectTo(*server);
  std::vector<float> values(gradients.size());
  const PullSection read[] = {{"t", keys, values}};
  RequireOk(client->Pull(read, PullMode::kInferZeros, 1, kTimeout));
  for (const float value : values) ExpectEqual(value, 1.0F);
});

}  // namespace

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
