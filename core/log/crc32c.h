// CRC32C (Castagnoli), computed with the processor's instruction where available.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sparsefleet {

// Extends `crc`, the checksum of the bytes so far (0 at the start), by `bytes`.
std::uint32_t Crc32c(std::uint32_t crc, std::span<const std::byte> bytes);

// The same in portable code; for tests.
std::uint32_t Crc32cPortable(std::uint32_t crc, std::span<const std::byte> bytes);

}  // namespace sparsefleet
