// The inner loops that store rows in fewer bits, compiled once per instruction set.
//
// Every set gives the same bits. This header is compiled with special instruction flags, so it
// includes nothing that emits shared inline code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsefleet {

// Rounds up or down at random, with probabilities that leave the mean unchanged. The random number
// of a value is a pure function of `seed`, its position and its bits. A value that the format can
// hold is stored exactly.
struct CodecKernels {
  void (*decode_bf16)(float* to, const std::uint16_t* from, std::size_t n);
  void (*encode_bf16)(std::uint16_t* to, const float* from, std::size_t n, std::uint32_t seed);
  // to = from * scale.
  void (*decode_int8)(float* to, const std::int8_t* from, std::size_t n, float scale);
  // Returns the scale: the smallest power of two at which all values fit in -127 .. 127. NaN if any
  // is not finite, or above 3.3e38; then all of `to` is 0. Values below 2^-120 may become 0.
  float (*encode_int8)(std::int8_t* to, const float* from, std::size_t n, std::uint32_t seed);
  // A hash of the values and their order.
  std::uint32_t (*digest)(const float* values, std::size_t n);
};

const CodecKernels& BaselineCodecKernels();
const CodecKernels& Avx2CodecKernels();    // x86-64 only; REQUIRES: HasAvx2()
const CodecKernels& Avx512CodecKernels();  // x86-64 only; REQUIRES: HasAvx512()
bool HasAvx512();                          // F, BW, DQ and VL
// The fastest set that this processor supports, for rows of `dim` values.
const CodecKernels& BestCodecKernels(std::uint32_t dim);

}  // namespace sparsefleet
