#include "table/shard_cut.h"

#include <cstring>

namespace sparsefleet {
namespace {

// A map node with its pointers, and the allocator's own overhead for it and for the image.
constexpr std::size_t kImageOverhead = 64;

}  // namespace

void ShardCut::Open(std::uint32_t size, bool only_dirty) {
  marked_.assign((static_cast<std::size_t>(size) + 63) / 64, 0);
  size_ = size;
  only_dirty_ = only_dirty;
  memory_bytes_ = marked_.capacity() * sizeof(marked_[0]);
}

void ShardCut::Save(std::uint32_t slot, const std::byte* image, std::size_t bytes) {
  if (image != nullptr) {
    auto copy = std::make_unique_for_overwrite<std::byte[]>(bytes);
    std::memcpy(copy.get(), image, bytes);
    images_.emplace(slot, std::move(copy));
    memory_bytes_.fetch_add(bytes + kImageOverhead, std::memory_order_relaxed);
  }
  marked_[slot / 64] |= std::uint64_t{1} << (slot % 64);
}

std::unique_ptr<std::byte[]> ShardCut::Take(std::uint32_t slot, std::size_t bytes) {
  const auto found = images_.find(slot);
  if (found == images_.end()) return nullptr;
  auto image = std::move(found->second);
  images_.erase(found);
  memory_bytes_.fetch_sub(bytes + kImageOverhead, std::memory_order_relaxed);
  return image;
}

void ShardCut::Close() {
  size_ = 0;
  cursor_ = 0;
  marked_ = std::vector<std::uint64_t>();
  images_.clear();
  memory_bytes_ = 0;
}

}  // namespace sparsefleet
