// Keys whose rows have changed since their watcher last asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "key/key.h"
#include "key/key_hash.h"
#include "sync/mutex.h"

namespace sparsefleet {

// One watcher's set for one table; see SparseTable::WatchChanges(). Holds each key once, so it
// never outgrows the table. Thread-safe.
class ChangeSet {
 public:
  void Add(std::span<const Key> keys);
  // Allocates memory for this many more keys, in addition to those already reserved, until
  // Unreserve(). Throws std::bad_alloc; then nothing is reserved.
  void Reserve(std::size_t keys);
  void Unreserve(std::size_t keys);

  // All keys that are not returned yet or may not have arrived; for snapshots.
  std::vector<Key> Pending() const;

  // The next keys, up to `max_keys`; empty at the end. `begin` starts over: it covers all changes
  // up to now and none made later. `received` is the number of chunks the watcher has received: a
  // chunk it has not received is returned again.
  std::vector<Key> Take(bool begin, std::uint64_t received, std::size_t max_keys);

  // Discards the last chunk as if it had not been returned; its keys are dropped anyway.
  void DropLast();

  std::uint64_t num_taken() const;  // chunks that were not empty
  // The longest probe for adding a key; scans the whole table.
  std::size_t LongestProbe() const;

 private:
  void Insert(Key key) REQUIRES(mutex_);
  void Grow(std::size_t keys) REQUIRES(mutex_);  // allocates for this many keys in total

  mutable Mutex mutex_;
  const KeyHash hash_;
  std::vector<Key> changed_ GUARDED_BY(mutex_);  // no key twice
  std::vector<std::uint32_t> places_
      GUARDED_BY(mutex_);  // open addressing: index into changed_ plus one, 0 is empty
  std::vector<Key> leaving_ GUARDED_BY(mutex_);  // still to return, from the end
  std::vector<Key> last_ GUARDED_BY(mutex_);     // returned, receipt not confirmed
  std::uint64_t num_taken_ GUARDED_BY(mutex_) = 0;
  std::size_t reserved_ GUARDED_BY(mutex_) = 0;
};

}  // namespace sparsefleet
