// Maps a key's hash to row numbers within one shard. The keys themselves are stored in the rows.
//
// Buckets of one cache line: twelve one-byte tags, twelve row numbers, and a count of entries that
// found the bucket full and moved on to a later one. A lookup reads one line, compares all tags at
// once and usually stops there.
//
// Invariant: `passed` of a bucket is the number of entries that probed it and live further on;
// where it is 0, the search ends.
//
// Not thread-safe except for Prefetch: guarded by the shard's lock.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "key/key.h"
#include "table/large_blocks.h"

namespace sparsefleet {

inline constexpr std::uint32_t kNoRow = 0xffffffff;

class RowIndex {
 public:
  // Prefetches the key's bucket. Needs no lock: at worst it fetches the wrong one.
  void Prefetch(std::uint32_t hash) const {
    const std::uint32_t home = ScaleTo(hash, hint_size_.load(std::memory_order_relaxed));
    __builtin_prefetch(reinterpret_cast<const void*>(hint_address_.load(std::memory_order_relaxed) +
                                                     home * sizeof(Bucket)));
  }

  // Whether it is too large for a processor's caches. Needs no lock.
  bool is_large() const { return hint_size_.load(std::memory_order_relaxed) >= kLargeBuckets; }

  // The first row under this hash for which matches(row) holds, or kNoRow.
  template <typename Matches>
  std::uint32_t Find(std::uint32_t hash, Matches matches) const;

  // A candidate row whose tag matches, or kNoRow, which is definite.
  std::uint32_t FindLikely(std::uint32_t hash) const {
    return Find(hash, [](std::uint32_t) { return true; });
  }

  // The number of entries that fit without Rebuild().
  std::uint64_t capacity() const { return buckets_.size() * kRowsPerFiveBuckets / 5; }

  // Makes the capacity at least this and re-inserts rows 0 .. num_rows-1.
  // Throws std::bad_alloc; then nothing has changed.
  template <typename HashOfRow>
  void Rebuild(std::uint64_t capacity, std::uint32_t num_rows, HashOfRow hash_of_row);

  // REQUIRES: fewer than capacity() entries.
  void Insert(std::uint32_t hash, std::uint32_t row) noexcept;
  // REQUIRES: the entry exists.
  void Erase(std::uint32_t hash, std::uint32_t row) noexcept;
  void Renumber(std::uint32_t hash, std::uint32_t from, std::uint32_t to) noexcept;

  void Clear() { Replace({}); }
  std::size_t memory_bytes() const { return buckets_.capacity() * sizeof(Bucket); }
  // The most buckets that Find() reads; scans all of them.
  std::size_t LongestProbe() const;

 private:
  static constexpr std::size_t kSlots = 12;
  static constexpr std::size_t kRowsPerFiveBuckets = 51;  // load 0.85
  static constexpr std::uint32_t kLargeBuckets = 512;     // about 5,000 rows of one shard of 64

  struct alignas(64) Bucket {
    std::array<std::uint8_t, kSlots> tags{};  // 0: empty
    std::uint32_t passed = 0;
    std::array<std::uint32_t, kSlots> rows{};
  };
  static_assert(sizeof(Bucket) == 64);
  using Buckets = std::vector<Bucket, LargeAllocator<Bucket>>;

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

  // Slots whose tag equals `tag`: kMaskStride bits per slot, the lowest of them set.
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

  void Replace(Buckets buckets) {
    buckets_ = std::move(buckets);
    hint_address_.store(reinterpret_cast<std::uintptr_t>(buckets_.data()),
                        std::memory_order_relaxed);
    hint_size_.store(static_cast<std::uint32_t>(buckets_.size()), std::memory_order_relaxed);
  }

  Buckets buckets_;
  std::atomic<std::uintptr_t> hint_address_ = 0;  // address of buckets_, for Prefetch only
  std::atomic<std::uint32_t> hint_size_ = 0;
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
  Replace(Buckets(capacity * 5 / kRowsPerFiveBuckets + 1));
  for (std::uint32_t row = 0; row < num_rows; ++row) Insert(hash_of_row(row), row);
}

}  // namespace sparsefleet
