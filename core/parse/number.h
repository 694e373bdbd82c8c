// Parses numbers in text without a locale, without allocation and without reading past the end.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

namespace sparsefleet {

enum class NumberFault : std::uint8_t {
  kNone,
  kNotANumber,  // no digits where required, or something else after them
  kTooLarge,    // out of the type's range
};

inline bool IsDigit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

// A line may have a Windows line end: its CR counts as a blank.
inline bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

inline const char* SkipBlanks(const char* at, const char* end) {
  while (at != end && IsBlank(*at)) ++at;
  return at;
}

// The eight bytes at `at`, the first one lowest; zeros for those beyond the end.
inline std::uint64_t WordAt(const char* at, const char* end) {
  std::uint64_t word = 0;
  if (end - at >= 8) {
    std::memcpy(&word, at, sizeof(word));
    return word;
  }
  for (int shift = 0; at != end; ++at, shift += 8) {
    word |= static_cast<std::uint64_t>(static_cast<unsigned char>(*at)) << shift;
  }
  return word;
}

// How many bytes of `word`, starting with the lowest, are digits.
inline int LeadingDigits(std::uint64_t word) {
  const std::uint64_t values = word ^ 0x3030303030303030ULL;
  // The high bit of each byte that is not a digit. Addition may carry beyond such a byte, never
  // before.
  const std::uint64_t others = ((values + 0x7676767676767676ULL) | values) & 0x8080808080808080ULL;
  return std::countr_zero(others) / 8;
}

// The value of the first `count` bytes of `word`, which are digits: pairs, then fours, then all.
// REQUIRES: 1 <= count <= 8.
inline std::uint32_t ValueOfDigits(std::uint64_t word, int count) {
  word <<= 64 - 8 * count;  // zeros in front
  word = (word & 0x0F0F0F0F0F0F0F0FULL) * (10 * 256 + 1) >> 8;
  word = (word & 0x00FF00FF00FF00FFULL) * (100 * 65536 + 1) >> 16;
  return static_cast<std::uint32_t>((word & 0x0000FFFF0000FFFFULL) * (10000 * 4294967296ULL + 1) >>
                                    32);
}

inline constexpr std::uint32_t kSmallPowers[] = {1,       10,        100,        1'000,      10'000,
                                                 100'000, 1'000'000, 10'000'000, 100'000'000};

// Reads decimal digits at `at` and moves it past them. Blanks and signs are not digits.
inline NumberFault ReadUint64(const char*& at, const char* end, std::uint64_t& value) {
  const char* const begin = at;
  std::uint64_t sum = 0;
  int count = 8;
  while (count == 8 && at - begin < 16) {  // 16 digits cannot overflow
    const std::uint64_t word = WordAt(at, end);
    count = LeadingDigits(word);
    if (count == 0) break;
    sum = sum * kSmallPowers[count] + ValueOfDigits(word, count);
    at += count;
  }
  if (count == 8) {
    for (; at != end && IsDigit(*at); ++at) {
      const auto digit = static_cast<std::uint64_t>(*at - '0');
      if (sum > (UINT64_MAX - digit) / 10) return NumberFault::kTooLarge;
      sum = sum * 10 + digit;
    }
  }
  value = sum;
  return at == begin ? NumberFault::kNotANumber : NumberFault::kNone;
}

// Reads [+-] digits.
inline NumberFault ReadInt64(const char*& at, const char* end, std::int64_t& value) {
  const bool negative = at != end && *at == '-';
  if (at != end && (*at == '-' || *at == '+')) ++at;
  std::uint64_t size = 0;
  const NumberFault fault = ReadUint64(at, end, size);
  if (fault != NumberFault::kNone) return fault;
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (size > kMax + (negative ? 1 : 0)) return NumberFault::kTooLarge;
  value = static_cast<std::int64_t>(negative ? 0 - size : size);
  return NumberFault::kNone;
}

// Reads a decimal number like strtof, to the nearest float: [+-] digits [. digits] [e [+-] digits].
// NaN, infinity and hexadecimal are not decimal numbers; numbers too small for a float become 0.
NumberFault ReadFloat(const char*& at, const char* end, float& value);

}  // namespace sparsefleet
