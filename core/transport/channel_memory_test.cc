// Handshakes in which an allocation of OpenSSL fails: that is not mistaken for a wrong key.
#include <openssl/crypto.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "testing/channel_pair.h"
#include "testing/check.h"
#include "transport/channel_kinds.h"

namespace sparsefleet::testing {
namespace {

// This many allocations of OpenSSL succeed from now on, then all fail; < 0: all succeed.
std::int64_t allocations_left = -1;

bool Fails() {
  if (allocations_left < 0) return false;
  if (allocations_left == 0) return true;
  --allocations_left;
  return false;
}

void* Allocate(std::size_t size, const char*, int) { return Fails() ? nullptr : std::malloc(size); }
void* Resize(void* memory, std::size_t size, const char*, int) {
  return Fails() ? nullptr : std::realloc(memory, size);
}
void Free(void* memory, const char*, int) { std::free(memory); }

// Must run before OpenSSL allocates anything: later it refuses these functions.
const bool kInstalled = CRYPTO_set_mem_functions(Allocate, Resize, Free) == 1;

const Test kHandshake("a handshake that is out of memory says so and does not blame the key", [] {
  Require(kInstalled, "OpenSSL has allocated before");
  const auto factory = MakeFactory(Security(TransportKind::kTls));
  int failures = 0;
  int named = 0;
  for (std::int64_t n = 0; n < 2000; n += 3) {
    const auto fds = SocketPair();
    auto client = RequireOk(factory->Connect(fds[0]));
    auto server = RequireOk(factory->Accept(fds[1]));
    // The client's hello is on its way before memory runs out.
    (void)client->Handshake();
    allocations_left = n;
    const auto answer = server->Handshake();
    const bool has_failed = allocations_left == 0;
    allocations_left = -1;
    if (!has_failed) break;
    if (answer.ok()) continue;
    ++failures;
    named += answer.status().message().find("out of memory") != std::string::npos ? 1 : 0;
    Expect(answer.status().code() != Code::kAuthFailed,
           "allocation " + std::to_string(n) + ": " + answer.status().message());
  }
  Expect(failures > 10, "there were " + std::to_string(failures));
  Expect(named > failures / 4, std::to_string(named) + " of " + std::to_string(failures));
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
