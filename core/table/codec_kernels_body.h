// The loops behind codec_kernels.h. Included by one source file per instruction set, each of which
// gets its own copy: everything here has internal linkage and calls no shared inline function.
// Format: a replayed log must round as its server did; do not change results.
#pragma once

#include <cstddef>
#include <cstdint>

#include "table/codec_kernels.h"

namespace sparsefleet {
namespace {

constexpr std::uint32_t kGolden = 0x9e3779b9U;  // 2^32 over the golden ratio
constexpr std::uint32_t kAbsolute = 0x7fffffffU;
constexpr std::uint32_t kInfinity = 0x7f800000U;

inline std::uint32_t BitsOf(float value) { return __builtin_bit_cast(std::uint32_t, value); }
inline float FloatOf(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

// The finalizer of MurmurHash3 (Appleby 2011).
inline std::uint32_t Scramble(std::uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bU;
  x = (x ^ (x >> 13)) * 0xc2b2ae35U;
  return x ^ (x >> 16);
}

inline std::uint32_t NoiseAt(std::uint32_t bits, std::uint32_t seed, std::size_t i) {
  return Scramble(bits ^ (seed + static_cast<std::uint32_t>(i) * kGolden));
}

void DecodeBf16(float* __restrict to, const std::uint16_t* __restrict from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = FloatOf(std::uint32_t{from[i]} << 16);
}

void EncodeBf16(std::uint16_t* __restrict to, const float* __restrict from, std::size_t n,
                std::uint32_t seed) {
  constexpr std::uint32_t kLargest = 0x7f7f0000U;  // beyond it, rounding up gives infinity
  constexpr std::uint32_t kQuiet = 0x00400000U;    // a NaN must keep a bit of its payload
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t bits = BitsOf(from[i]);
    const std::uint32_t size = bits & kAbsolute;
    const std::uint32_t noise = NoiseAt(bits, seed, i) >> 16;
    const std::uint32_t rounded = bits + (size >= kLargest ? 0U : noise);
    to[i] = static_cast<std::uint16_t>((rounded | (size > kInfinity ? kQuiet : 0U)) >> 16);
  }
}

void DecodeInt8(float* __restrict to, const std::int8_t* __restrict from, std::size_t n,
                float scale) {
  for (std::size_t i = 0; i < n; ++i) to[i] = static_cast<float>(from[i]) * scale;
}

// The biased exponent of the scale for a row whose largest absolute value has these bits.
inline std::int32_t ScaleExponent(std::uint32_t largest) {
  constexpr std::uint32_t kMantissa = 0x007fffffU;
  constexpr std::uint32_t kMantissaOf127 = 0x007e0000U;
  return static_cast<std::int32_t>(largest >> 23) - 6 +
         ((largest & kMantissa) > kMantissaOf127 ? 1 : 0);
}

float EncodeInt8(std::int8_t* __restrict to, const float* __restrict from, std::size_t n,
                 std::uint32_t seed) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const std::uint32_t size = BitsOf(from[i]) & kAbsolute;
    largest = size > largest ? size : largest;
  }
  constexpr std::uint32_t kLargest = 0x7f7e0000U;  // 127 * 2^121; more might round to infinity
  const std::int32_t exponent = ScaleExponent(largest);
  if (largest > kLargest || exponent < 1) {
    for (std::size_t i = 0; i < n; ++i) to[i] = 0;
    return largest > kLargest ? __builtin_nanf("") : 0.0F;
  }
  const float inverse = FloatOf(static_cast<std::uint32_t>(254 - exponent) << 23);
  for (std::size_t i = 0; i < n; ++i) {
    const float exact = from[i] * inverse;  // by a power of two
    const auto cut = static_cast<std::int32_t>(exact);
    const std::int32_t floor = cut - (exact < static_cast<float>(cut) ? 1 : 0);
    const float rest = exact - static_cast<float>(floor);
    const auto noise = static_cast<std::int32_t>(NoiseAt(BitsOf(from[i]), seed, i) >> 8);
    const bool up = static_cast<float>(noise) * 0x1p-24F < rest;
    to[i] = static_cast<std::int8_t>(floor + (up ? 1 : 0));
  }
  return FloatOf(static_cast<std::uint32_t>(exponent) << 23);
}

std::uint32_t Digest(const float* values, std::size_t n) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < n; ++i) {
    sum += BitsOf(values[i]) * (2U * kGolden * static_cast<std::uint32_t>(i) + 1U);
  }
  return Scramble(sum);
}

constexpr CodecKernels kKernels = {DecodeBf16, EncodeBf16, DecodeInt8, EncodeInt8, Digest};

}  // namespace
}  // namespace sparsefleet
