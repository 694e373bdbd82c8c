// CRC32C (Castagnoli), by the processor's instruction where there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sparsefleet {

// The checksum of the bytes checksummed so far (`crc`, 0 at the start) followed by `bytes`.
std::uint32_t Crc32c(std::uint32_t crc, std::span<const std::byte> bytes);

// The same by tables, on any processor; for tests.
std::uint32_t Crc32cPortable(std::uint32_t crc, std::span<const std::byte> bytes);

}  // namespace sparsefleet
