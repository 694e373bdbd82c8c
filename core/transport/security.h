// How the two ends of a connection prove the job key to each other.
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
// A sender renews its key after this many records, 128 GiB if they are full. RFC 8446 section 5.5
// allows 2^24.5 full records per AES-GCM key.
inline constexpr std::uint64_t kTlsRecordsPerKey = 1ull << 23;

struct SecurityOptions {
  TransportKind transport = TransportKind::kAuto;
  std::string job_key;  // raw bytes, at least kMinJobKeyBytes; usually 32 random ones
  std::uint64_t tls_records_per_key = kTlsRecordsPerKey;  // lower it only in tests
};

}  // namespace sparsefleet
