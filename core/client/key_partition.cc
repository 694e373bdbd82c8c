#include "client/key_partition.h"

#include <cstring>

namespace sparsefleet {

void KeyPartition::Build(std::span<const Key> keys, std::uint32_t num_servers) {
  owners_.resize(keys.size());
  keys_.resize(keys.size());
  positions_.resize(keys.size());
  begin_.assign(num_servers + 1, 0);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    owners_[i] = OwnerOf(keys[i], num_servers);
    ++begin_[owners_[i] + 1];
  }
  for (std::uint32_t server = 0; server < num_servers; ++server) {
    begin_[server + 1] += begin_[server];
  }
  next_.assign(begin_.begin(), begin_.end() - 1);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const std::size_t at = next_[owners_[i]]++;
    keys_[at] = keys[i];
    positions_[at] = static_cast<std::uint32_t>(i);
  }
}

void PartitionRows(std::span<const float> batch, std::span<const std::uint32_t> positions,
                   std::size_t dim, std::span<float> partitioned) {
  for (std::size_t j = 0; j < positions.size(); ++j) {
    std::memcpy(partitioned.data() + j * dim, batch.data() + positions[j] * dim,
                dim * sizeof(float));
  }
}

void RestoreRows(std::span<const float> partitioned, std::span<const std::uint32_t> positions,
                 std::size_t dim, std::span<float> batch) {
  for (std::size_t j = 0; j < positions.size(); ++j) {
    std::memcpy(batch.data() + positions[j] * dim, partitioned.data() + j * dim,
                dim * sizeof(float));
  }
}

}  // namespace sparsefleet
