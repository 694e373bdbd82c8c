// Sorts the keys of a batch by the shard that holds them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "key/key.h"
#include "key/key_hash.h"

namespace sparsefleet {

inline constexpr std::size_t kNumShards = 64;

// Both derive from a key's KeyHash value and are independent of each other.
constexpr std::size_t ShardOf(std::uint64_t hash) { return hash >> 58; }
constexpr std::uint32_t SlotHash(std::uint64_t hash) { return static_cast<std::uint32_t>(hash); }

struct BatchItem {
  Key key;
  std::uint32_t hash;      // SlotHash: the key's place inside its shard
  std::uint32_t position;  // in the batch
};

// Reuses its buffers from batch to batch. Not thread-safe.
class BatchPlan {
 public:
  // Keeps the order of the batch within a shard. REQUIRES: keys.size() < 2^32.
  void Build(std::span<const Key> keys, const KeyHash& hash);

  std::span<const BatchItem> shard(std::size_t number) const {
    return std::span(items_).subspan(starts_[number], starts_[number + 1] - starts_[number]);
  }
  // The shard of the batch's first key. REQUIRES: there is one.
  std::size_t first_shard() const { return ShardOf(hashes_[0]); }

  std::size_t capacity() const { return items_.capacity(); }

 private:
  std::vector<std::uint64_t> hashes_;
  std::vector<BatchItem> items_;
  std::array<std::size_t, kNumShards + 1> starts_{};
};

}  // namespace sparsefleet
