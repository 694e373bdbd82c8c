#include "key/key_hash.h"

#include <sys/random.h>
#include <unistd.h>

#include <random>

namespace sparsefleet {
namespace {

KeyHash::Salt RandomSalt() {
  KeyHash::Salt salt;
  if (getentropy(salt.data(), sizeof(salt)) == 0) return salt;
  // A kernel without the call, or a sandbox that forbids it.
  std::random_device random("/dev/urandom");
  for (std::uint64_t& word : salt) word = std::uint64_t{random()} << 32 | random();
  return salt;
}

}  // namespace

KeyHash::KeyHash() : KeyHash(RandomSalt()) {}

}  // namespace sparsefleet
