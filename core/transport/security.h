// How two ends prove the job key to each other, chosen when a connection is made.
#pragma once

#include <cstdint>
#include <string>

namespace sparsefleet {

enum class TransportKind : std::uint8_t {
  kTls = 0,    // TLS 1.3, the job key as pre-shared key
  kPlain = 1,  // no encryption; the key is still proven by challenge and response
  kAuto = 2,   // TLS over the network, shared memory within a host; the default
};

inline constexpr std::size_t kMinJobKeyBytes = 16;

struct SecurityOptions {
  TransportKind transport = TransportKind::kAuto;
  std::string job_key;  // raw bytes, at least kMinJobKeyBytes; 32 random ones are usual
};

}  // namespace sparsefleet
