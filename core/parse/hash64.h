// A text hash that is the same in every process, on every machine and in every version.
#pragma once

#include <cstdint>
#include <string_view>

namespace sparsefleet {

// Format: XXH64 as in the xxHash specification: little-endian words, the same number for the same
// bytes and seed forever. Ids in saved tables depend on it, so it must never change; docs/data.md
// describes it step by step, hash64_test.cc has known answers.
std::uint64_t Hash64(std::string_view bytes, std::uint64_t seed = 0);

}  // namespace sparsefleet
