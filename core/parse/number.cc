#include "parse/number.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <system_error>
#ifdef __APPLE__
#include <xlocale.h>
#endif

namespace sparsefleet {
namespace {

// Powers of ten that a double holds exactly.
constexpr double kPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                              1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                              1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
constexpr int kMaxPower = 22;
constexpr std::uint64_t kMaxExact = std::uint64_t{1} << 53;
constexpr int kMaxDigits = 19;                                  // of a mantissa kept in 64 bits
constexpr std::int64_t kExponentBound = 1'000'000'000'000'000;  // more than any line has digits

struct Decimal {
  bool negative = false;
  std::uint64_t mantissa = 0;
  std::int64_t exponent = 0;   // of ten
  std::int64_t magnitude = 0;  // 10^(magnitude - 1) <= |value| < 10^magnitude, if not zero
  bool exact = true;           // false: digits beyond the mantissa were dropped
};

// Reads digits before or after the point. Returns how many there were.
std::size_t ReadDigits(const char*& at, const char* end, int& kept, bool fraction, Decimal& out) {
  const char* const begin = at;
  for (; at != end && IsDigit(*at); ++at) {
    const auto digit = static_cast<std::uint64_t>(*at - '0');
    if (kept < kMaxDigits) {
      out.mantissa = out.mantissa * 10 + digit;
      kept += out.mantissa != 0 ? 1 : 0;
      out.exponent -= fraction ? 1 : 0;
    } else {
      out.exact = out.exact && digit == 0;
      out.exponent += fraction ? 0 : 1;
    }
  }
  return static_cast<std::size_t>(at - begin);
}

// An `e` without digits after it is not part of the number: `at` then stays before it.
void ReadExponent(const char*& at, const char* end, Decimal& out) {
  if (at == end || (*at != 'e' && *at != 'E')) return;
  const char* next = at + 1;
  const bool negative = next != end && *next == '-';
  if (next != end && (*next == '-' || *next == '+')) ++next;
  if (next == end || !IsDigit(*next)) return;
  std::int64_t power = 0;
  for (; next != end && IsDigit(*next); ++next) {
    power = std::min(power * 10 + (*next - '0'), kExponentBound);
  }
  out.exponent += negative ? -power : power;
  at = next;
}

// Rounding twice, to double and then to float, may differ from rounding once if `wide` is exactly
// halfway between two floats.
bool IsBetweenFloats(double wide) {
  constexpr std::uint64_t kBelowFloat = (std::uint64_t{1} << 29) - 1;
  return (std::bit_cast<std::uint64_t>(wide) & kBelowFloat) == std::uint64_t{1} << 28;
}

// The common case: [-] 1 to 7 digits [. 1 to 8 digits]. Returns false for anything else, even if it
// is a number; `at` is then unchanged.
bool ReadShortFloat(const char*& at, const char* end, float& value) {
  const bool negative = at != end && *at == '-';
  const char* next = at + (negative ? 1 : 0);
  std::uint64_t word = WordAt(next, end);
  int count = LeadingDigits(word);
  if (count == 0 || count == 8) return false;
  std::uint64_t mantissa = ValueOfDigits(word, count);
  int places = 0;
  next += count;
  if (next != end && *next == '.') {
    ++next;
    word = WordAt(next, end);
    places = LeadingDigits(word);
    if (places == 0) return false;
    mantissa = mantissa * kSmallPowers[places] + ValueOfDigits(word, places);
    next += places;
  }
  if (next != end && (IsDigit(*next) || (*next | 0x20) == 'e')) return false;
  const double wide = static_cast<double>(mantissa) / kPowers[places];  // 15 digits are exact
  if (IsBetweenFloats(wide)) return false;
  value = static_cast<float>(negative ? -wide : wide);
  at = next;
  return true;
}

// Exact if mantissa and power of ten are exact doubles and the result is not halfway between
// floats.
bool FastValue(const Decimal& decimal, float& value) {
  if (!decimal.exact || decimal.mantissa > kMaxExact || decimal.exponent < -kMaxPower ||
      decimal.exponent > kMaxPower) {
    return false;
  }
  auto wide = static_cast<double>(decimal.mantissa);
  wide =
      decimal.exponent < 0 ? wide / kPowers[-decimal.exponent] : wide * kPowers[decimal.exponent];
  if (IsBetweenFloats(wide)) return false;
  if (wide != 0 && (wide < FLT_MIN || wide > FLT_MAX)) return false;
  value = static_cast<float>(decimal.negative ? -wide : wide);
  return true;
}

// [begin, end) is a complete decimal number without a plus sign.
NumberFault SlowValue(const char* begin, const char* end, const Decimal& decimal, float& value) {
  // Far outside the range of floats, where libraries disagree on what to report.
  if (decimal.mantissa == 0 || decimal.magnitude < -60) {
    value = decimal.negative ? -0.0f : 0.0f;
    return NumberFault::kNone;
  }
  if (decimal.magnitude > 60) return NumberFault::kTooLarge;
#ifdef __cpp_lib_to_chars
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error == std::errc() && stop == end) return NumberFault::kNone;
  if (error == std::errc::result_out_of_range && decimal.magnitude < 0) {
    double wide = 0;
    std::from_chars(begin, end, wide);
    value = static_cast<float>(wide);
    return NumberFault::kNone;
  }
  return NumberFault::kTooLarge;
#else
  const std::string text(begin, end);  // this many digits are rare
#ifdef __APPLE__
  value = strtof_l(text.c_str(), nullptr, nullptr);
#else
  value = std::strtof(text.c_str(), nullptr);
#endif
  return std::isinf(value) ? NumberFault::kTooLarge : NumberFault::kNone;
#endif
}

}  // namespace

NumberFault ReadFloat(const char*& at, const char* end, float& value) {
  if (ReadShortFloat(at, end, value)) return NumberFault::kNone;
  Decimal decimal;
  decimal.negative = at != end && *at == '-';
  const char* begin = at;
  if (at != end && (*at == '-' || *at == '+')) {
    begin += decimal.negative ? 0 : 1;
    ++at;
  }
  int kept = 0;
  std::size_t digits = ReadDigits(at, end, kept, false, decimal);
  if (at != end && *at == '.') {
    ++at;
    digits += ReadDigits(at, end, kept, true, decimal);
  }
  if (digits == 0) return NumberFault::kNotANumber;
  ReadExponent(at, end, decimal);
  decimal.magnitude = decimal.exponent + kept;
  if (FastValue(decimal, value)) return NumberFault::kNone;
  return SlowValue(begin, at, decimal, value);
}

}  // namespace sparsefleet
