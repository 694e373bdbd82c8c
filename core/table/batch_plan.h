// The keys of one batch sorted by the shard that holds them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "table/key.h"

namespace sparsefleet {

inline constexpr std::size_t kNumShards = 64;

constexpr std::size_t ShardOf(Key key) { return Mix64(key) >> 58; }
// Places the key inside its shard; independent of ShardOf.
constexpr std::uint32_t PlacementHash(Key key) { return static_cast<std::uint32_t>(Mix64(key)); }

struct BatchItem {
  Key key;
  std::uint32_t hash;      // PlacementHash(key)
  std::uint32_t position;  // in the batch
};

// Keeps its buffers from batch to batch. Not thread-safe.
class BatchPlan {
 public:
  // Keeps the order of the batch within a shard. REQUIRES: keys.size() < 2^32.
  void Build(std::span<const Key> keys);

  std::span<const BatchItem> shard(std::size_t number) const {
    return std::span(items_).subspan(starts_[number], starts_[number + 1] - starts_[number]);
  }

 private:
  std::vector<std::uint64_t> hashes_;
  std::vector<BatchItem> items_;
  std::array<std::size_t, kNumShards + 1> starts_{};
};

}  // namespace sparsefleet
