// A hash of texts that is the same in every process, on every machine and in every version.
#pragma once

#include <cstdint>
#include <string_view>

namespace sparsefleet {

// Format: XXH64 as the xxHash specification has it: little-endian words, the same number for the
// same bytes and seed for ever. Ids in saved tables rest on it, so it must never change;
// docs/data.md has it step by step, hash64_test.cc has known answers.
std::uint64_t Hash64(std::string_view bytes, std::uint64_t seed = 0);

}  // namespace sparsefleet
