// Numbers in text, read without a locale, without allocation and without reading past the end.
#pragma once

#include <cstdint>
#include <cstring>

namespace sparsefleet {

enum class NumberFault : std::uint8_t {
  kNone,
  kNotANumber,  // no digits where they must be, or something else behind them
  kTooLarge,    // more than the type holds
};

inline bool IsDigit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

// The end of a line may have been written by Windows: its CR counts as a blank.
inline bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

inline const char* SkipBlanks(const char* at, const char* end) {
  while (at != end && IsBlank(*at)) ++at;
  return at;
}

// True if all eight bytes of `word` are digits.
inline bool AreEightDigits(std::uint64_t word) {
  return ((word & 0xF0F0F0F0F0F0F0F0ULL) |
          (((word + 0x0606060606060606ULL) & 0xF0F0F0F0F0F0F0F0ULL) >> 4)) == 0x3333333333333333ULL;
}

// Value of eight digits, the first one in the lowest byte: pairs, then fours, then all.
inline std::uint32_t ValueOfEightDigits(std::uint64_t word) {
  word = (word & 0x0F0F0F0F0F0F0F0FULL) * (10 * 256 + 1) >> 8;
  word = (word & 0x00FF00FF00FF00FFULL) * (100 * 65536 + 1) >> 16;
  return static_cast<std::uint32_t>((word & 0x0000FFFF0000FFFFULL) * (10000 * 4294967296ULL + 1) >>
                                    32);
}

// Reads decimal digits from `at` on, moving it past them. Blanks and signs are not digits.
inline NumberFault ReadUint64(const char*& at, const char* end, std::uint64_t& value) {
  const char* const begin = at;
  std::uint64_t sum = 0;
  while (end - at >= 8 && at - begin < 16) {  // 16 digits cannot overflow
    std::uint64_t word;
    std::memcpy(&word, at, sizeof(word));
    if (!AreEightDigits(word)) break;
    sum = sum * 100'000'000 + ValueOfEightDigits(word);
    at += 8;
  }
  for (; at != end && IsDigit(*at); ++at) {
    const auto digit = static_cast<std::uint64_t>(*at - '0');
    if (sum > (UINT64_MAX - digit) / 10) return NumberFault::kTooLarge;
    sum = sum * 10 + digit;
  }
  value = sum;
  return at == begin ? NumberFault::kNotANumber : NumberFault::kNone;
}

// Reads [+-] digits.
NumberFault ReadInt64(const char*& at, const char* end, std::int64_t& value);

// Reads a decimal number as strtof does, to the nearest float: [+-] digits [. digits] [e [+-]
// digits]. NaN, infinity and hexadecimal are not decimal numbers; what is nearer to 0 than any
// float is 0.
NumberFault ReadFloat(const char*& at, const char* end, float& value);

}  // namespace sparsefleet
