#include "table/shard_cut.h"

#include <cstring>

namespace sparsefleet {
namespace {

// A map node with its pointers, plus the allocator's overhead for it and for the image.
constexpr std::size_t kImageOverhead = 64;

std::size_t Words(std::uint64_t bits) { return static_cast<std::size_t>((bits + 63) / 64); }

}  // namespace

void ShardCut::Prepare(std::uint32_t size, CutMode mode) {
  // A few more than now: the shard grows until the cut is opened.
  const std::size_t words = Words(size + std::uint64_t{size} / 16 + 1024);
  marked_.assign(words, 0);
  if (mode.only_dirty || mode.clear_dirty) dirty_.assign(words, 0);
  mode_ = mode;
}

void ShardCut::Open(std::uint32_t size, std::uint32_t time) {
  const std::size_t words = Words(size);
  if (marked_.size() < words) marked_.resize(words);
  if (!dirty_.empty() && dirty_.size() < words) dirty_.resize(words);
  size_ = size;
  time_ = time;
  wants_removed_ = mode_.only_dirty;
  memory_bytes_ = (marked_.capacity() + dirty_.capacity()) * sizeof(marked_[0]);
}

void ShardCut::MakeRoomForReturn(std::uint32_t removed, std::size_t keys) {
  if (!wants_removed_ || removed > time_) return;
  const std::size_t before = returned_.capacity();
  if (returned_.size() + keys <= before) return;
  returned_.reserve(before * 2 + 8 + keys);
  memory_bytes_.fetch_add((returned_.capacity() - before) * sizeof(Key), std::memory_order_relaxed);
}

void ShardCut::KeepReturned(Key key, std::uint32_t removed) noexcept {
  if (wants_removed_ && removed <= time_) returned_.push_back(key);
}

void ShardCut::TakeReturned(std::vector<Key>& out) {
  out.insert(out.end(), returned_.begin(), returned_.end());
  memory_bytes_.fetch_sub(returned_.capacity() * sizeof(Key), std::memory_order_relaxed);
  returned_ = std::vector<Key>();
  wants_removed_ = false;
}

void ShardCut::Save(std::uint32_t slot, const std::byte* image, std::size_t bytes) {
  if (image != nullptr) {
    auto copy = std::make_unique_for_overwrite<std::byte[]>(bytes);
    std::memcpy(copy.get(), image, bytes);
    images_.emplace(slot, std::move(copy));
    memory_bytes_.fetch_add(bytes + kImageOverhead, std::memory_order_relaxed);
  }
  Set(marked_, slot);
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
  marked_ = Bits();
  dirty_ = Bits();
  images_.clear();
  returned_ = std::vector<Key>();
  kept = KeptWords();
  wants_removed_ = false;
  memory_bytes_ = 0;
}

}  // namespace sparsefleet
