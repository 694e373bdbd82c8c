#include "table/row_codec.h"

#include <bit>
#include <cstring>

#include "optimizer/kernels.h"

namespace sparsefleet {
namespace {

constexpr std::uint64_t kRoundingStream = 0x726f756e64ULL;  // apart from initial values

std::uint32_t BytesOf(RowDtype dtype, std::uint32_t dim) {
  switch (dtype) {
    case RowDtype::kFloat32:
      return dim * sizeof(float);
    case RowDtype::kBf16:
      return (dim * sizeof(std::uint16_t) + 3) / 4 * 4;
    case RowDtype::kInt8:
      return sizeof(float) + (dim + 3) / 4 * 4;
  }
  return 0;
}

}  // namespace

#if defined(__x86_64__)

bool HasAvx512() {
  return __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
         __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
}

const CodecKernels& BestCodecKernels(std::uint32_t dim) {
  // The wide loops take 64 values at a time; what is left over is slow.
  constexpr std::uint32_t kWideDim = 64;
  static const bool has_avx512 = HasAvx512();
  if (has_avx512 && dim >= kWideDim) return Avx512CodecKernels();
  static const CodecKernels& best = HasAvx2() ? Avx2CodecKernels() : BaselineCodecKernels();
  return best;
}

#else

bool HasAvx512() { return false; }
const CodecKernels& BestCodecKernels(std::uint32_t) { return BaselineCodecKernels(); }

#endif

RowCodec::RowCodec(RowDtype dtype, std::uint32_t dim, std::uint64_t seed,
                   const CodecKernels& kernels)
    : kernels_(&kernels),
      dtype_(dtype),
      dim_(dim),
      bytes_(BytesOf(dtype, dim)),
      mixed_seed_(Mix64(seed ^ kRoundingStream)) {}

void RowCodec::Decode(const std::byte* from, float* to) const {
  if (dtype_ == RowDtype::kBf16) {
    kernels_->decode_bf16(to, reinterpret_cast<const std::uint16_t*>(from), dim_);
  } else {
    float scale;
    std::memcpy(&scale, from, sizeof(scale));
    kernels_->decode_int8(to, reinterpret_cast<const std::int8_t*>(from + sizeof(scale)), dim_,
                          scale);
  }
}

void RowCodec::Encode(Key key, std::uint64_t salt, const float* from, std::byte* to) const {
  const auto seed = static_cast<std::uint32_t>(Mix64(Mix64(key ^ mixed_seed_) ^ salt) >> 32);
  std::memset(to + bytes_ - 4, 0, 4);  // the padding is within the last four bytes
  if (dtype_ == RowDtype::kBf16) {
    kernels_->encode_bf16(reinterpret_cast<std::uint16_t*>(to), from, dim_, seed);
  } else {
    auto* values = reinterpret_cast<std::int8_t*>(to + sizeof(float));
    const float scale = kernels_->encode_int8(values, from, dim_, seed);
    std::memcpy(to, &scale, sizeof(scale));
  }
}

void RowCodec::Round(Key key, float* values) const {
  alignas(4) std::byte encoded[sizeof(float) + kMaxDim * sizeof(std::uint16_t)];
  Encode(key, 0, values, encoded);
  Decode(encoded, values);
}

std::uint64_t RowCodec::Salt(const float* input, float state) const {
  return std::uint64_t{std::bit_cast<std::uint32_t>(state)} << 32 | kernels_->digest(input, dim_);
}

}  // namespace sparsefleet
