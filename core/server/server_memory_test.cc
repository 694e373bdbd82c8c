// A server that is out of memory for a request says so, with and without TLS.
#include <atomic>
#include <cstdlib>
#include <new>
#include <string>

#include "testing/check.h"
#include "testing/test_server.h"
#include "testing/wire_client.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

constexpr std::size_t kTooLarge = 8u << 20;
std::atomic<bool> is_tight = false;

void* Allocate(std::size_t size) {
  if (is_tight && size >= kTooLarge) throw std::bad_alloc();
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t size) { return Allocate(size); }
void* operator new[](std::size_t size) { return Allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

namespace {

void ExpectReason(TransportKind kind) {
  ServerOptions options;
  options.security = TestSecurity(kind);
  TestServer server(options);
  auto client = server.Join(1, "worker-0");
  FrameHeader header;
  header.type = MessageType::kPush;
  header.request_id = 77;
  header.sequence = 1;
  header.timeout_ms = 20'000;
  header.body_bytes = 4 * kTooLarge;
  std::vector<std::byte> bytes(kFrameHeaderBytes);
  EncodeFrameHeader(header, std::span<std::byte, kFrameHeaderBytes>(bytes));
  const std::vector<std::byte> block(1u << 20);
  is_tight = true;
  client->SendBytes(bytes);
  for (std::size_t sent = 0; sent < header.body_bytes; sent += block.size()) {
    if (!client->SendBytes(block)) break;
  }
  const auto reply = client->ReadReply();
  is_tight = false;
  ExpectEqual(reply.header.request_id, header.request_id);
  ExpectCode(reply.status, Code::kTooLarge);
  Expect(reply.status.message().find("out of memory") != std::string::npos, reply.status.message());
}

const Test kTls("a request that does not fit into memory gets an error that says so, under TLS",
                [] { ExpectReason(TransportKind::kTls); });
const Test kPlain("a request that does not fit into memory gets an error that says so, plain",
                  [] { ExpectReason(TransportKind::kPlain); });

}  // namespace

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
