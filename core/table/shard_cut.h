// One shard's part of an open cut: which rows it still owes, and the rows as they were that have
// changed since. Guarded by the shard's lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "table/key.h"

namespace sparsefleet {

// What a cut of a table has to do with dirty bits.
struct CutMode {
  bool only_dirty = false;
  bool clear_dirty = false;
};

// Invariants: every slot below size whose content changed since the cut is marked, and what was in
// it is in `images` if the slot is not below the cursor and the cut wants it. A slot that is not
// marked holds the row of the cut's moment; only its dirty bit may have been cleared since.
class ShardCut {
 public:
  // Takes the memory that the cut of a shard of about this size needs.
  void Prepare(std::uint32_t size, CutMode mode);
  // The cut of a shard that has `size` rows now, at this time of its removed keys.
  void Open(std::uint32_t size, std::uint32_t time);

  std::uint32_t cursor() const { return cursor_; }
  std::uint32_t size() const { return size_; }
  bool only_dirty() const { return mode_.only_dirty; }
  bool clear_dirty() const { return mode_.clear_dirty; }
  bool done() const { return cursor_ == size_; }

  // Whether a change of this slot must be preceded by Save().
  bool Wants(std::uint32_t slot) const { return slot < size_ && !IsMarked(slot); }
  // Marks the slot as changed and keeps its content, if `image` is not null.
  // Throws std::bad_alloc, then nothing has changed.
  void Save(std::uint32_t slot, const std::byte* image, std::size_t bytes);

  bool IsMarked(std::uint32_t slot) const { return Has(marked_, slot); }

  // Remembers that an unmarked slot's row is dirty: this cut has handed it out as such, or
  // another is about to clear its bit. Nothing to remember for a cut that does not look at bits.
  void NoteDirty(std::uint32_t slot) noexcept {
    if (slot < size_ && !dirty_.empty() && !IsMarked(slot)) Set(dirty_, slot);
  }
  bool WasDirty(std::uint32_t slot) const { return !dirty_.empty() && Has(dirty_, slot); }

  std::uint32_t time() const { return time_; }
  // Whether the keys removed at the cut's moment are still to be read from the shard.
  bool WantsRemoved() const { return wants_removed_; }
  // A key removed by `removed`, in the shard's time, is to come back: those of the cut are kept.
  // Room for one takes memory, and may throw std::bad_alloc; keeping one then does not.
  void MakeRoomForReturn(std::uint32_t removed);
  void KeepReturned(Key key, std::uint32_t removed) noexcept;
  // The keys kept, once; none are wanted after that.
  void TakeReturned(std::vector<Key>& out);

  // The content kept for the slot, null if none; it is then no longer kept.
  std::unique_ptr<std::byte[]> Take(std::uint32_t slot, std::size_t bytes);
  void Advance() { ++cursor_; }
  void Close();

  std::size_t memory_bytes() const { return memory_bytes_.load(std::memory_order_relaxed); }

 private:
  using Bits = std::vector<std::uint64_t>;
  static bool Has(const Bits& bits, std::uint32_t slot) {
    return (bits[slot / 64] >> (slot % 64) & 1) != 0;
  }
  static void Set(Bits& bits, std::uint32_t slot) {
    bits[slot / 64] |= std::uint64_t{1} << (slot % 64);
  }

  std::uint32_t size_ = 0;
  std::uint32_t cursor_ = 0;
  CutMode mode_;
  std::uint32_t time_ = 0;
  bool wants_removed_ = false;
  std::vector<Key> returned_;
  Bits marked_;
  Bits dirty_;  // empty where the cut has nothing to do with dirty bits
  std::unordered_map<std::uint32_t, std::unique_ptr<std::byte[]>> images_;
  std::atomic<std::size_t> memory_bytes_ = 0;  // read by others under the shared lock
};

}  // namespace sparsefleet
