// Records which rows of a table have changed, and which watchers have yet to see the changes.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "key/key.h"
#include "key/key_hash.h"
#include "sync/mutex.h"
#include "table/batch_plan.h"
#include "table/key_words.h"

namespace sparsefleet {

class ChangeCursor;

// The keys of changed rows in the order of their last change, kept once for all watchers: a change
// costs the same for any number of them, and so does its memory. Each key has one live entry, so a
// watcher that never takes its changes holds at most one entry per row. Split like the table, by
// shard, so that pushes do not wait for each other here. Thread-safe.
class ChangeLog : public std::enable_shared_from_this<ChangeLog> {
 public:
  explicit ChangeLog(const KeyHash& hash);

  // A cursor at the end of the log. REQUIRES: every Reserve() has had its Add() or Unreserve();
  // otherwise its changes may be missing.
  std::shared_ptr<ChangeCursor> Watch();
  bool is_watched() const { return num_cursors_.load(std::memory_order_relaxed) > 0; }

  // Allocates memory so that adding this many keys of the shard cannot fail. Throws
  // std::bad_alloc; then nothing is reserved.
  void Reserve(std::size_t shard, std::size_t keys);
  void Unreserve(std::size_t shard, std::size_t keys) noexcept;
  // Adds the changed keys among `reserved` keys, which are released. Call it after the change.
  void Add(std::size_t shard, std::span<const BatchItem> items, std::size_t reserved) noexcept;

  std::size_t memory_bytes() const;

 private:
  friend class ChangeCursor;
  struct Entry {
    Key key;
    std::uint64_t number;  // rises from entry to entry; kDead is set if the key has a later one
  };
  struct alignas(64) Part {
    explicit Part(const KeyHash& hash) : places(hash) {}
    mutable Mutex mutex;
    std::vector<Entry> entries GUARDED_BY(mutex);
    KeyWords places GUARDED_BY(mutex);         // the index of a key's live entry, plus one
    std::uint64_t last GUARDED_BY(mutex) = 0;  // number of the last entry
    // The newest entry that any cursor has passed: a key with a later one needs no further entry.
    std::uint64_t passed GUARDED_BY(mutex) = 0;
    std::size_t reserved GUARDED_BY(mutex) = 0;
  };

  void Forget(const ChangeCursor& cursor) noexcept;
  // Drops entries that are dead or that all cursors have passed.
  void Compact(Part& part, std::size_t shard) REQUIRES(part.mutex);
  std::uint64_t OldestPosition(std::size_t shard) const;
  // Adds the keys changed since `position` to `keys`.
  static void Collect(const Part& part, std::uint64_t position, std::vector<Key>& keys)
      REQUIRES(part.mutex);
  void Read(std::size_t shard, std::uint64_t position, std::vector<Key>& keys) const;
  // Reads, and lets a cursor pass: returns its new position.
  std::uint64_t Pass(std::size_t shard, std::uint64_t position, std::vector<Key>& keys);

  const KeyHash hash_;
  std::array<std::unique_ptr<Part>, kNumShards> parts_;
  std::atomic<std::size_t> num_cursors_ = 0;
  mutable Mutex cursors_mutex_;  // taken after a part's
  std::vector<const ChangeCursor*> cursors_ GUARDED_BY(cursors_mutex_);
};

// One watcher's position in the log; while it exists, changes are logged. Thread-safe.
class ChangeCursor {
 public:
  explicit ChangeCursor(std::shared_ptr<ChangeLog> log);  // see ChangeLog::Watch()
  ~ChangeCursor();
  ChangeCursor(const ChangeCursor&) = delete;
  ChangeCursor& operator=(const ChangeCursor&) = delete;

  // The next keys, up to `max_keys`, each once; empty at the end. `begin` starts over: it covers
  // all changes up to now and none made later. `received` is the number of chunks the watcher has
  // received: a chunk it has not received is returned again. Throws std::bad_alloc; then all of
  // them come again with the next call that begins.
  std::vector<Key> Take(bool begin, std::uint64_t received, std::size_t max_keys);

  // Discards the last chunk as if it had not been returned; its keys are dropped anyway.
  void DropLast();

  // All keys that are not returned yet or may not have arrived; for snapshots.
  std::vector<Key> Pending() const;
  // Adds these keys to those that the next Take() returns.
  void Restore(std::span<const Key> keys);

  std::uint64_t num_taken() const;  // chunks that were not empty

 private:
  friend class ChangeLog;
  void Begin() REQUIRES(mutex_);

  const std::shared_ptr<ChangeLog> log_;
  std::array<std::atomic<std::uint64_t>, kNumShards> positions_{};
  mutable Mutex mutex_;
  std::vector<Key> leaving_ GUARDED_BY(mutex_);  // still to return, from the end
  std::vector<Key> last_ GUARDED_BY(mutex_);     // returned, receipt not confirmed
  std::uint64_t num_taken_ GUARDED_BY(mutex_) = 0;
};

}  // namespace sparsefleet
