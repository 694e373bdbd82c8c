// One shard's part of an open cut: the rows still to be returned, and copies of those that have
// changed since. Guarded by the shard's lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "key/key.h"

namespace sparsefleet {

// How a cut of a table treats dirty bits.
struct CutMode {
  bool only_dirty = false;
  bool clear_dirty = false;
  bool for_snapshot = false;  // also copy the shard's words, see ShardCut::kept
};

// Invariants: every slot below size whose content changed since the cut is marked, and its old
// content is in `images` if the slot is not below the cursor and the cut includes it. An unmarked
// slot holds the row as of the cut; only its dirty bit may have been cleared since.
class ShardCut {
 public:
  // Allocates what the cut of a shard of about this size needs.
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
  // Marks the slot as changed and keeps its content if `image` is not null.
  // Throws std::bad_alloc; then nothing has changed.
  void Save(std::uint32_t slot, const std::byte* image, std::size_t bytes);

  bool IsMarked(std::uint32_t slot) const { return Has(marked_, slot); }

  // Records that an unmarked slot's row is dirty: this cut has returned it as such, or another is
  // about to clear its bit. Does nothing for a cut that ignores dirty bits.
  void NoteDirty(std::uint32_t slot) noexcept {
    if (slot < size_ && !dirty_.empty() && !IsMarked(slot)) Set(dirty_, slot);
  }
  bool WasDirty(std::uint32_t slot) const { return !dirty_.empty() && Has(dirty_, slot); }

  std::uint32_t time() const { return time_; }

  bool for_snapshot() const { return mode_.for_snapshot; }
  // The state of a shard besides its rows, at the moment of a cut for a snapshot.
  struct KeptWords {
    std::vector<Key> candidates;
    std::vector<std::uint32_t> counts;
    std::vector<Key> removed;
    std::vector<std::uint32_t> times;
    bool keeps_removed = false;
    std::uint32_t removed_now = 1;
  };
  KeptWords kept;
  // Whether the keys removed before the cut have yet to be read from the shard.
  bool WantsRemoved() const { return wants_removed_; }
  // A key removed by `removed`, in the shard's time, is coming back: keep it if it belongs to the
  // cut. Reserving room allocates and may throw std::bad_alloc; keeping the key then does not.
  void MakeRoomForReturn(std::uint32_t removed, std::size_t keys = 1);
  void KeepReturned(Key key, std::uint32_t removed) noexcept;
  // The kept keys, once; none are kept after that.
  void TakeReturned(std::vector<Key>& out);

  // Takes the content kept for the slot; null if none.
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
  Bits dirty_;  // empty if the cut ignores dirty bits
  std::unordered_map<std::uint32_t, std::unique_ptr<std::byte[]>> images_;
  std::atomic<std::size_t> memory_bytes_ = 0;  // others read it under the shared lock
};

}  // namespace sparsefleet
