#include "table/batch_plan.h"

namespace sparsefleet {

void BatchPlan::Build(std::span<const Key> keys, const KeyHash& hash) {
  hashes_.resize(keys.size());
  items_.resize(keys.size());
  starts_.fill(0);
  const KeyHash local = hash;  // a local copy stays in registers
  for (std::size_t i = 0; i < keys.size(); ++i) {
    hashes_[i] = local(keys[i]);
    ++starts_[ShardOf(hashes_[i]) + 1];
  }
  for (std::size_t s = 0; s < kNumShards; ++s) starts_[s + 1] += starts_[s];
  std::array<std::size_t, kNumShards + 1> next = starts_;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    items_[next[ShardOf(hashes_[i])]++] = {keys[i], SlotHash(hashes_[i]),
                                           static_cast<std::uint32_t>(i)};
  }
}

}  // namespace sparsefleet
