// Keys that an attacker would choose against Mix64, which is public and invertible: placed by Mix64
// alone, they would all share one shard, one bucket and one slot. Header only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "key/key.h"

namespace sparsefleet::testing {

// The inverse of y = x ^ (x >> shift), for shifts of 22 or more.
constexpr std::uint64_t UnshiftXor(std::uint64_t y, int shift) {
  return y ^ (y >> shift) ^ (y >> (2 * shift));
}

// The inverse of x -> x * odd modulo 2^64, by Newton's iteration.
constexpr std::uint64_t InverseOf(std::uint64_t odd) {
  std::uint64_t inverse = odd;
  for (int i = 0; i < 5; ++i) inverse *= 2 - odd * inverse;
  return inverse;
}

// Mix64(Unmix64(hash)) == hash.
constexpr std::uint64_t Unmix64(std::uint64_t hash) {
  std::uint64_t x = UnshiftXor(hash, 31);
  x = UnshiftXor(x * InverseOf(0x94d049bb133111ebULL), 27);
  x = UnshiftXor(x * InverseOf(0xbf58476d1ce4e5b9ULL), 30);
  return x - 0x9e3779b97f4a7c15ULL;
}
static_assert(Mix64(Unmix64(0x0123456789abcdefULL)) == 0x0123456789abcdefULL);

// Distinct keys whose Mix64 agree in the six highest and the 32 lowest bits.
// REQUIRES: count <= 2^26.
inline std::vector<Key> ChosenKeys(std::size_t count) {
  constexpr std::uint64_t kHigh = std::uint64_t{5} << 58;
  constexpr std::uint64_t kLow = 0x1234abcd;
  std::vector<Key> keys(count);
  for (std::size_t i = 0; i < count; ++i) keys[i] = Unmix64(kHigh | (i << 32) | kLow);
  return keys;
}

}  // namespace sparsefleet::testing
