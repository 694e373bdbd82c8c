#include "log/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#if defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#endif

namespace sparsefleet {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // reflected

using Table = std::array<std::uint32_t, 256>;

constexpr std::array<Table, 8> MakeTables() {
  std::array<Table, 8> tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][i] = crc;
  }
  for (std::uint32_t i = 0; i < 256; ++i) {
    for (std::size_t t = 1; t < 8; ++t) {
      tables[t][i] = (tables[t - 1][i] >> 8) ^ tables[0][tables[t - 1][i] & 0xff];
    }
  }
  return tables;
}

constexpr std::array<Table, 8> kTables = MakeTables();

std::uint64_t Load64(const std::byte* at) {
  std::uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

// The checksums of three blocks of this size are computed in parallel: the instruction has a
// latency of three cycles, and one can start in each cycle.
constexpr std::size_t kBlock = 2048;

// The effect of `kBlock` following zero bytes on a checksum, for each of its four bytes.
constexpr std::array<Table, 4> MakeShift() {
  std::array<Table, 4> shift{};
  for (std::size_t place = 0; place < 4; ++place) {
    // Linear: the shifts of single bits determine those of all values.
    std::array<std::uint32_t, 8> bits{};
    for (std::size_t bit = 0; bit < 8; ++bit) {
      std::uint32_t crc = 1u << (8 * place + bit);
      for (std::size_t i = 0; i < kBlock; ++i) crc = (crc >> 8) ^ kTables[0][crc & 0xff];
      bits[bit] = crc;
    }
    for (std::uint32_t value = 0; value < 256; ++value) {
      std::uint32_t crc = 0;
      for (std::size_t bit = 0; bit < 8; ++bit) crc ^= (value >> bit & 1) != 0 ? bits[bit] : 0;
      shift[place][value] = crc;
    }
  }
  return shift;
}

[[maybe_unused]] std::uint32_t Shifted(std::uint32_t crc) {
  static const std::array<Table, 4> shift = MakeShift();
  return shift[0][crc & 0xff] ^ shift[1][crc >> 8 & 0xff] ^ shift[2][crc >> 16 & 0xff] ^
         shift[3][crc >> 24];
}

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) std::uint32_t Crc32cHardware(std::uint32_t crc,
                                                               std::span<const std::byte> bytes) {
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  std::uint64_t sum = ~crc;
  for (; left >= 3 * kBlock; left -= 3 * kBlock, at += 3 * kBlock) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (std::size_t i = 0; i < kBlock; i += 8) {
      sum = _mm_crc32_u64(sum, Load64(at + i));
      second = _mm_crc32_u64(second, Load64(at + kBlock + i));
      third = _mm_crc32_u64(third, Load64(at + 2 * kBlock + i));
    }
    sum = Shifted(static_cast<std::uint32_t>(sum)) ^ second;
    sum = Shifted(static_cast<std::uint32_t>(sum)) ^ third;
  }
  for (; left >= 8; left -= 8, at += 8) sum = _mm_crc32_u64(sum, Load64(at));
  auto rest = static_cast<std::uint32_t>(sum);
  for (; left > 0; --left, ++at) rest = _mm_crc32_u8(rest, static_cast<std::uint8_t>(*at));
  return ~rest;
}
bool HasHardware() { return __builtin_cpu_supports("sse4.2") != 0; }

#elif defined(__aarch64__)

__attribute__((target("+crc"))) std::uint32_t Crc32cHardware(std::uint32_t crc,
                                                             std::span<const std::byte> bytes) {
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  std::uint32_t sum = ~crc;
  for (; left >= 8; left -= 8, at += 8) sum = __crc32cd(sum, Load64(at));
  for (; left > 0; --left, ++at) sum = __crc32cb(sum, static_cast<std::uint8_t>(*at));
  return ~sum;
}
#if defined(__linux__)
bool HasHardware() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#else
bool HasHardware() { return true; }  // on every 64-bit ARM by Apple
#endif

#else

std::uint32_t Crc32cHardware(std::uint32_t crc, std::span<const std::byte> bytes) {
  return Crc32cPortable(crc, bytes);
}
bool HasHardware() { return false; }

#endif

}  // namespace

std::uint32_t Crc32cPortable(std::uint32_t crc, std::span<const std::byte> bytes) {
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  std::uint32_t sum = ~crc;
  for (; left >= 8; left -= 8, at += 8) {
    const std::uint64_t word = Load64(at) ^ sum;
    sum = 0;
    for (std::size_t i = 0; i < 8; ++i) sum ^= kTables[7 - i][word >> (8 * i) & 0xff];
  }
  for (; left > 0; --left, ++at) {
    sum = (sum >> 8) ^ kTables[0][(sum ^ static_cast<std::uint8_t>(*at)) & 0xff];
  }
  return ~sum;
}

std::uint32_t Crc32c(std::uint32_t crc, std::span<const std::byte> bytes) {
  static const bool has_hardware = HasHardware();
  return has_hardware ? Crc32cHardware(crc, bytes) : Crc32cPortable(crc, bytes);
}

}  // namespace sparsefleet
