// From a key's hash to row numbers, for one shard. Keys themselves live in the rows.
//
// Buckets of one cache line: twelve one-byte tags, twelve row numbers, and a count of entries
// that found the bucket full and went on to a later one. A lookup reads one line, compares all
// tags at once and mostly stops there.
//
// Invariant: `passed` of a bucket is the number of entries that probed it and live further on;
// where it is 0, an entry not found so far is not in the index.
//
// Not thread-safe: the shard's lock guards it.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "table/key.h"

namespace sparsefleet {

inline constexpr std::uint32_t kNoRow = 0xffffffff;

class RowIndex {
 public:
  void Prefetch(std::uint32_t hash) const {
    if (!buckets_.empty()) __builtin_prefetch(&buckets_[Home(hash)]);
  }

  // The first row under this hash for which matches(row) holds, or kNoRow.
  template <typename Matches>
  std::uint32_t Find(std::uint32_t hash, Matches matches) const;

  // A row that may be the one: its tag fits. kNoRow is certain.
  std::uint32_t FindLikely(std::uint32_t hash) const {
    return Find(hash, [](std::uint32_t) { return true; });
  }

  // Entries that fit without Rebuild().
  std::uint64_t capacity() const { return buckets_.size() * kRowsPerFiveBuckets / 5; }

  // Makes the capacity at least this and enters rows 0 .. num_rows-1 anew.
  // Throws std::bad_alloc, then nothing has changed.
  template <typename HashOfRow>
  void Rebuild(std::uint64_t capacity, std::uint32_t num_rows, HashOfRow hash_of_row);

  // REQUIRES: fewer than capacity() entries.
  void Insert(std::uint32_t hash, std::uint32_t row) noexcept;
  // REQUIRES: the entry is there.
  void Erase(std::uint32_t hash, std::uint32_t row) noexcept;
  void Renumber(std::uint32_t hash, std::uint32_t from, std::uint32_t to) noexcept;

  void Clear() { buckets_ = std::vector<Bucket>(); }
  std::size_t memory_bytes() const { return buckets_.capacity() * sizeof(Bucket); }

 private:
  static constexpr std::size_t kSlots = 12;
  static constexpr std::size_t kRowsPerFiveBuckets = 51;  // load 0.85

  struct alignas(64) Bucket {
    std::array<std::uint8_t, kSlots> tags{};  // 0: empty
    std::uint32_t passed = 0;
    std::array<std::uint32_t, kSlots> rows{};
  };
  static_assert(sizeof(Bucket) == 64);

  static std::uint8_t TagOf(std::uint32_t hash) {
    const auto tag = static_cast<std::uint8_t>(hash);
    return tag == 0 ? 1 : tag;
  }
  std::uint32_t Home(std::uint32_t hash) const {
    return ScaleTo(hash, static_cast<std::uint32_t>(buckets_.size()));
  }
  std::uint32_t Next(std::uint32_t bucket) const {
    return bucket + 1 == buckets_.size() ? 0 : bucket + 1;
  }

  // Slots whose tag equals `tag`, kMaskStride bits a slot, the lowest of them set.
#if defined(__SSE2__)
  static constexpr int kMaskStride = 1;
  static std::uint64_t MatchTags(const Bucket& bucket, std::uint8_t tag) {
    const __m128i line = _mm_load_si128(reinterpret_cast<const __m128i*>(bucket.tags.data()));
    const __m128i equal = _mm_cmpeq_epi8(line, _mm_set1_epi8(static_cast<char>(tag)));
    return static_cast<std::uint32_t>(_mm_movemask_epi8(equal)) & 0xfffU;
  }
#elif defined(__ARM_NEON) && defined(__aarch64__)
  static constexpr int kMaskStride = 4;
  static std::uint64_t MatchTags(const Bucket& bucket, std::uint8_t tag) {
    const uint8x16_t line = vld1q_u8(bucket.tags.data());
    const uint8x16_t equal = vceqq_u8(line, vdupq_n_u8(tag));
    const uint8x8_t nibbles = vshrn_n_u16(vreinterpretq_u16_u8(equal), 4);
    return vget_lane_u64(vreinterpret_u64_u8(nibbles), 0) & 0x0000111111111111ULL;
  }
#else
  static constexpr int kMaskStride = 1;
  static std::uint64_t MatchTags(const Bucket& bucket, std::uint8_t tag) {
    std::uint64_t mask = 0;
    for (std::size_t i = 0; i < kSlots; ++i) {
      mask |= static_cast<std::uint64_t>(bucket.tags[i] == tag) << i;
    }
    return mask;
  }
#endif

  std::vector<Bucket> buckets_;
};

template <typename Matches>
std::uint32_t RowIndex::Find(std::uint32_t hash, Matches matches) const {
  if (buckets_.empty()) return kNoRow;
  const std::uint8_t tag = TagOf(hash);
  std::uint32_t at = Home(hash);
  for (std::size_t tries = buckets_.size(); tries > 0; --tries, at = Next(at)) {
    const Bucket& bucket = buckets_[at];
    for (std::uint64_t mask = MatchTags(bucket, tag); mask != 0; mask &= mask - 1) {
      const std::uint32_t row = bucket.rows[std::countr_zero(mask) / kMaskStride];
      if (matches(row)) return row;
    }
    if (bucket.passed == 0) break;
  }
  return kNoRow;
}

template <typename HashOfRow>
void RowIndex::Rebuild(std::uint64_t capacity, std::uint32_t num_rows, HashOfRow hash_of_row) {
  std::vector<Bucket> buckets(capacity * 5 / kRowsPerFiveBuckets + 1);
  buckets_ = std::move(buckets);
  for (std::uint32_t row = 0; row < num_rows; ++row) Insert(hash_of_row(row), row);
}

}  // namespace sparsefleet
