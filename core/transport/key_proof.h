// Building blocks of the handshakes: keyed digests and random bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "status/status.h"

namespace sparsefleet {

inline constexpr std::size_t kDigestBytes = 32;
using Digest = std::array<std::byte, kDigestBytes>;

// HMAC-SHA256 of the label followed by the parts.
Result<Digest> KeyedDigest(std::string_view key, std::string_view label,
                           std::initializer_list<std::span<const std::byte>> parts);

// Compares in constant time.
// REQUIRES: both have kDigestBytes.
bool SameDigest(std::span<const std::byte> a, std::span<const std::byte> b);

// Unpredictable bytes; kInternal if the system has none.
Status FillRandom(std::span<std::byte> out);
Result<std::uint64_t> RandomNumber();  // never 0

}  // namespace sparsefleet
