// Keys, and the hash that is the same in every process. Header only.
#pragma once

#include <cstdint>

namespace sparsefleet {

// A feature id. Every 64-bit value is legal.
using Key = std::uint64_t;

// Bijective 64-bit mixer (the finalizer of SplitMix64, Steele et al. 2014). Anyone can invert it:
// hash tables of keys from outside use KeyHash instead. Format: key ownership and initial values
// depend on it; do not change.
constexpr std::uint64_t Mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Maps a well mixed 32-bit value evenly onto 0 .. n-1 without a division.
constexpr std::uint32_t ScaleTo(std::uint32_t hash, std::uint32_t n) {
  return static_cast<std::uint32_t>((static_cast<std::uint64_t>(hash) * n) >> 32);
}

// The server, of `num_servers`, that owns the row of `key`; the same in every process.
// Format: clients and checkpoints depend on it; do not change.
constexpr std::uint32_t OwnerOf(Key key, std::uint32_t num_servers) {
  if (num_servers <= 1) return 0;
  return ScaleTo(static_cast<std::uint32_t>(Mix64(key ^ 0x5350464c45455421ULL) >> 32), num_servers);
}

}  // namespace sparsefleet
