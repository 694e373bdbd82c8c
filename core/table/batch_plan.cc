#include "table/batch_plan.h"

namespace sparsefleet {

void BatchPlan::Build(std::span<const Key> keys) {
  hashes_.resize(keys.size());
  items_.resize(keys.size());
  starts_.fill(0);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    hashes_[i] = Mix64(keys[i]);
    ++starts_[(hashes_[i] >> 58) + 1];
  }
  for (std::size_t s = 0; s < kNumShards; ++s) starts_[s + 1] += starts_[s];
  std::array<std::size_t, kNumShards + 1> next = starts_;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    items_[next[hashes_[i] >> 58]++] = {keys[i], static_cast<std::uint32_t>(hashes_[i]),
                                        static_cast<std::uint32_t>(i)};
  }
}

}  // namespace sparsefleet
