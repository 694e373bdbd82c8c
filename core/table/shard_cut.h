// One shard's part of an open cut: which rows it still owes, and the rows as they were that have
// changed since. Guarded by the shard's lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace sparsefleet {

// Invariant: every slot in [cursor, size) whose content changed since the cut is marked, and
// its old content is in `images` unless the cut does not want it.
class ShardCut {
 public:
  // The cut of a shard that has `size` rows now.
  void Open(std::uint32_t size, bool only_dirty);

  std::uint32_t cursor() const { return cursor_; }
  std::uint32_t size() const { return size_; }
  bool only_dirty() const { return only_dirty_; }
  bool done() const { return cursor_ == size_; }

  // Whether a change of this slot must be preceded by Save().
  bool Wants(std::uint32_t slot) const {
    return slot >= cursor_ && slot < size_ && !IsMarked(slot);
  }
  // Marks the slot as changed and keeps its content, if `image` is not null.
  // Throws std::bad_alloc, then nothing has changed.
  void Save(std::uint32_t slot, const std::byte* image, std::size_t bytes);

  bool IsMarked(std::uint32_t slot) const { return (marked_[slot / 64] >> (slot % 64) & 1) != 0; }
  // The content kept for the slot, null if none; it is then no longer kept.
  std::unique_ptr<std::byte[]> Take(std::uint32_t slot, std::size_t bytes);
  void Advance() { ++cursor_; }
  void Close();

  std::size_t memory_bytes() const { return memory_bytes_.load(std::memory_order_relaxed); }

 private:
  std::uint32_t size_ = 0;
  std::uint32_t cursor_ = 0;
  bool only_dirty_ = false;
  std::vector<std::uint64_t> marked_;
  std::unordered_map<std::uint32_t, std::unique_ptr<std::byte[]>> images_;
  std::atomic<std::size_t> memory_bytes_ = 0;  // read by others under the shared lock
};

}  // namespace sparsefleet
