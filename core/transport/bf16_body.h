// The loops behind bf16.h. Included by one source file per instruction set, each of which gets its
// own copy: everything here has internal linkage and calls no shared inline function.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/bf16.h"

namespace sparsefleet {
namespace {

constexpr std::uint32_t kExponent = 0x7f800000U;
constexpr std::uint32_t kQuiet = 0x00400000U;
constexpr std::uint32_t kGolden = 0x9e3779b9U;  // 2^32 over the golden ratio
// Values widened at once, in registers: a detour through memory would stall on every block.
constexpr std::size_t kBlock = 8;
typedef Bf16 Halves __attribute__((vector_size(2 * kBlock)));
typedef std::uint32_t Words __attribute__((vector_size(4 * kBlock)));

// Adds `noise`, at most 0xffff, to the bits that are dropped, and drops them.
inline Bf16 Rounded(std::uint32_t bits, std::uint32_t noise) {
  const std::uint32_t up = bits + noise;
  const bool stays = ((bits & kExponent) == kExponent) | ((up & kExponent) == kExponent);
  const std::uint32_t quiet = (bits & 0x7fffffffU) > kExponent ? kQuiet : 0U;
  return static_cast<Bf16>(((stays ? bits : up) | quiet) >> 16);
}

// A good 32-bit mixer: Wellons, "Prospecting for hash functions" (2018), lowbias32.
inline std::uint32_t Mixed(std::uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352dU;
  x ^= x >> 15;
  x *= 0x846ca68bU;
  return x ^ (x >> 16);
}

void Narrow(Bf16* __restrict to, const float* __restrict from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, from + i, sizeof(bits));
    to[i] = Rounded(bits, 0x7fffU + ((bits >> 16) & 1U));
  }
}

void NarrowByChance(Bf16* __restrict to, const float* __restrict from, std::size_t n,
                    std::uint32_t seed, std::uint64_t first) {
  std::uint32_t at = seed + static_cast<std::uint32_t>(first) * kGolden;
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, from + i, sizeof(bits));
    to[i] = Rounded(bits, Mixed(at) >> 16);
    at += kGolden;
  }
}

// Each block is read before its floats overwrite it, or values that are already done.
void Widen(float* to, const std::byte* from, std::size_t n) {
  std::size_t i = 0;
  for (; i + kBlock <= n; i += kBlock) {
    Halves halves;
    __builtin_memcpy(&halves, from + 2 * i, sizeof(halves));
    const Words words = __builtin_convertvector(halves, Words) << 16;
    __builtin_memcpy(to + i, &words, sizeof(words));
  }
  for (; i < n; ++i) {
    Bf16 one;
    __builtin_memcpy(&one, from + 2 * i, sizeof(one));
    const std::uint32_t wide = static_cast<std::uint32_t>(one) << 16;
    __builtin_memcpy(to + i, &wide, sizeof(wide));
  }
}

constexpr Bf16Kernels kKernels = {Narrow, NarrowByChance, Widen};

}  // namespace
}  // namespace sparsefleet
