// The salted hash that places keys in this process's memory.
#pragma once

#include <array>
#include <cstdint>

#include "key/key.h"

namespace sparsefleet {

// Hashes keys for one hash table of this process. Copies share the salt.
//
// Ids come from users, and Mix64 can be inverted: an attacker can compute ids that all fall into
// one slot. Here ids first go through (a * key + b) mod 2^128, high half, with secret random a and
// b. For any two different keys chosen without the salt, the results are independent and uniform
// over all 64-bit values (Dietzfelbinger 1996, strongly universal for 64-bit keys and results), so
// they collide as rarely as random numbers, whatever the keys. The last two lines are a bijection,
// which preserves that, and scatter the arithmetic progressions that a linear map leaves of
// consecutive ids.
//
// This is not a cryptographic hash: whoever can observe where many keys end up may recover the
// salt. Nothing that leaves the process, or that affects results, may be computed from it.
class KeyHash {
 public:
  using Salt = std::array<std::uint64_t, 4>;  // low and high half of a, then of b

  KeyHash();  // with a new salt from the operating system's random numbers
  explicit constexpr KeyHash(const Salt& salt)
      : factor_(Join(salt[1], salt[0])), term_(Join(salt[3], salt[2])) {}

  constexpr std::uint64_t operator()(Key key) const {
    auto hash = static_cast<std::uint64_t>((factor_ * key + term_) >> 64);
    hash = (hash ^ (hash >> 32)) * 0xd6e8feb86659fd93ULL;
    return hash ^ (hash >> 32);
  }

 private:
  __extension__ using Wide = unsigned __int128;

  static constexpr Wide Join(std::uint64_t high, std::uint64_t low) {
    return static_cast<Wide>(high) << 64 | low;
  }

  Wide factor_;
  Wide term_;
};

}  // namespace sparsefleet
