#include "table/crc32c.h"

#include <array>
#include <cstring>

namespace sparsefleet {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // reflected
constexpr std::size_t kSlices = 8;

using Tables = std::array<std::array<std::uint32_t, 256>, kSlices>;

// Table s advances a byte over s further zero bytes, so that eight bytes go at once.
constexpr Tables MakeTables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t s = 1; s < kSlices; ++s) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t crc = tables[s - 1][byte];
      tables[s][byte] = (crc >> 8) ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

std::uint32_t ByteAt(std::span<const std::byte> bytes, std::size_t i) {
  return static_cast<std::uint32_t>(bytes[i]);
}

}  // namespace

std::uint32_t Crc32c(std::span<const std::byte> bytes, std::uint32_t before) {
  std::uint32_t crc = ~before;
  for (; bytes.size() >= kSlices; bytes = bytes.subspan(kSlices)) {
    const std::uint32_t low = crc ^ (ByteAt(bytes, 0) | ByteAt(bytes, 1) << 8 |
                                     ByteAt(bytes, 2) << 16 | ByteAt(bytes, 3) << 24);
    crc = kTables[7][low & 0xff] ^ kTables[6][low >> 8 & 0xff] ^ kTables[5][low >> 16 & 0xff] ^
          kTables[4][low >> 24] ^ kTables[3][ByteAt(bytes, 4)] ^ kTables[2][ByteAt(bytes, 5)] ^
          kTables[1][ByteAt(bytes, 6)] ^ kTables[0][ByteAt(bytes, 7)];
  }
  for (const std::byte byte : bytes) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<std::uint32_t>(byte)) & 0xff];
  }
  return ~crc;
}

}  // namespace sparsefleet
