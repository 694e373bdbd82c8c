// Stores the values of a row as they are, in 16 bits, or in 8 bits with a scale.
#pragma once

#include <cstddef>
#include <cstdint>

#include "key/key.h"
#include "table/codec_kernels.h"
#include "table/table_spec.h"

namespace sparsefleet {

// Stores rows of `dim` floats. Format, padded with zeros to a multiple of 4 bytes:
//   float32: the values | bf16: their upper halves, rounded | int8: scale (float32), then int8 each
// Encoding rounds up or down at random, so that rows keep on average what they learn in steps
// smaller than their precision. The random numbers are a pure function of the table's seed, the
// key, the values and a salt: a replayed log, a different number of servers and a run continued
// from a checkpoint all give the same bits. Decoded values are encoded exactly.
//
// Thread-safe: constant after construction.
class RowCodec {
 public:
  // REQUIRES: dim is in 1 .. kMaxDim.
  RowCodec(RowDtype dtype, std::uint32_t dim, std::uint64_t seed)
      : RowCodec(dtype, dim, seed, BestCodecKernels(dim)) {}
  RowCodec(RowDtype dtype, std::uint32_t dim, std::uint64_t seed, const CodecKernels& kernels);

  bool is_plain() const { return dtype_ == RowDtype::kFloat32; }
  std::uint32_t bytes() const { return bytes_; }

  // REQUIRES: not is_plain(), as below.
  void Decode(const std::byte* from, float* to) const;
  void Encode(Key key, std::uint64_t salt, const float* from, std::byte* to) const;
  // Sets `values` to what they decode to after encoding without a salt.
  void Round(Key key, float* values) const;
  // For an update by `input` (dim floats): different inputs, and different optimizer states, give
  // different random numbers.
  std::uint64_t Salt(const float* input, float state) const;

 private:
  const CodecKernels* kernels_;
  RowDtype dtype_;
  std::uint32_t dim_;
  std::uint32_t bytes_;
  std::uint64_t mixed_seed_;
};

}  // namespace sparsefleet
