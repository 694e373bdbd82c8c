// CRC-32C (Castagnoli; RFC 3720), the checksum of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sparsefleet {

// The checksum of `bytes` appended to what `before` is the checksum of; start from 0.
std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace sparsefleet
