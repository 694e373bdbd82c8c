// 16-bit floats on the wire: the upper half of a float32 (bfloat16), in half the bytes.
//
// The loops are compiled once per instruction set; every set gives the same bits. This header is
// compiled with special instruction flags, so it includes nothing that emits shared inline code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsefleet {

using Bf16 = std::uint16_t;

// Both ways of rounding keep NaN, infinity, and every value that the format can hold; a finite
// value stays finite.
struct Bf16Kernels {
  // Rounds to the nearest, ties to even.
  void (*narrow)(Bf16* to, const float* from, std::size_t n);
  // Rounds up or down at random, with probabilities that leave the mean unchanged. The random
  // number of a value is a pure function of `seed` and its position, `first` for the first one.
  void (*narrow_by_chance)(Bf16* to, const float* from, std::size_t n, std::uint32_t seed,
                           std::uint64_t first);
  // `from` holds n values, not necessarily aligned. It may be the last 2 n bytes of `to`.
  void (*widen)(float* to, const std::byte* from, std::size_t n);
};

const Bf16Kernels& BaselineBf16();
const Bf16Kernels& Avx2Bf16();  // x86-64 only; REQUIRES: HasAvx2()
// The fastest set this processor supports.
const Bf16Kernels& BestBf16();

}  // namespace sparsefleet
