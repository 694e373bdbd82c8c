#include "table/row_index.h"

#include "key/longest_run.h"

namespace sparsefleet {

void RowIndex::Insert(std::uint32_t hash, std::uint32_t row) noexcept {
  for (std::uint32_t at = Home(hash);; at = Next(at)) {
    Bucket& bucket = buckets_[at];
    const std::uint64_t empty = MatchTags(bucket, 0);
    if (empty == 0) {
      ++bucket.passed;
      continue;
    }
    const auto slot = static_cast<std::size_t>(std::countr_zero(empty) / kMaskStride);
    bucket.tags[slot] = TagOf(hash);
    bucket.rows[slot] = row;
    return;
  }
}

std::size_t RowIndex::LongestProbe() const {
  return LongestRun(buckets_, [](const Bucket& bucket) { return bucket.passed != 0; });
}

void RowIndex::Erase(std::uint32_t hash, std::uint32_t row) noexcept {
  for (std::uint32_t at = Home(hash);; at = Next(at)) {
    Bucket& bucket = buckets_[at];
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      if (bucket.tags[slot] == 0 || bucket.rows[slot] != row) continue;
      bucket.tags[slot] = 0;
      return;
    }
    --bucket.passed;
  }
}

void RowIndex::Renumber(std::uint32_t hash, std::uint32_t from, std::uint32_t to) noexcept {
  for (std::uint32_t at = Home(hash);; at = Next(at)) {
    Bucket& bucket = buckets_[at];
    for (std::size_t slot = 0; slot < kSlots; ++slot) {
      if (bucket.tags[slot] == 0 || bucket.rows[slot] != from) continue;
      bucket.rows[slot] = to;
      return;
    }
  }
}

}  // namespace sparsefleet
