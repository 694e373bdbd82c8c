// Partitions keys by the server that owns them, and reorders rows to match and back.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "key/key.h"

namespace sparsefleet {

// Keeps its buffers from batch to batch. Not thread-safe.
class KeyPartition {
 public:
  // REQUIRES: keys.size() < 2^31.
  void Build(std::span<const Key> keys, std::uint32_t num_servers);

  // A server's keys, in the order of the batch.
  std::span<const Key> KeysOf(std::uint32_t server) const {
    return std::span(keys_).subspan(begin_[server], SizeOf(server));
  }
  // The position of its first key among the keys of all servers.
  std::size_t BeginOf(std::uint32_t server) const { return begin_[server]; }
  std::size_t SizeOf(std::uint32_t server) const { return begin_[server + 1] - begin_[server]; }
  // positions()[j] is the batch position of the j-th key, counted server by server.
  std::span<const std::uint32_t> positions() const { return positions_; }

 private:
  std::vector<std::uint32_t> owners_;
  std::vector<std::size_t> begin_;  // by server, and the end
  std::vector<std::size_t> next_;
  std::vector<Key> keys_;
  std::vector<std::uint32_t> positions_;
};

// Row j of `partitioned` = row positions[j] of `batch`. REQUIRES: sizes of positions.size() * dim.
void PartitionRows(std::span<const float> batch, std::span<const std::uint32_t> positions,
                   std::size_t dim, std::span<float> partitioned);
// The inverse: row positions[j] of `batch` = row j of `partitioned`.
void RestoreRows(std::span<const float> partitioned, std::span<const std::uint32_t> positions,
                 std::size_t dim, std::span<float> batch);

}  // namespace sparsefleet
