// Keys whose rows have changed since their watcher last asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "table/key.h"

namespace sparsefleet {

// One watcher's set for one table; see SparseTable::WatchChanges(). Each key once, so it never
// outgrows the keys of the table.
// Thread-safe.
class ChangeSet {
 public:
  void Add(std::span<const Key> keys);

  // The next keys to hand out, up to `max_keys`; none at the end. `begin` starts anew: what has
  // changed until now is to be handed out, and nothing that changes later.
  // `received` is how many hand-outs the watcher has got: one that it has not got is part of what
  // is to be handed out again.
  std::vector<Key> Take(bool begin, std::uint64_t received, std::size_t max_keys);

  // The last hand-out was of no use and did not happen; its keys are dropped all the same.
  void DropLast();

  std::uint64_t num_taken() const;  // hand-outs that were not empty

 private:
  // These REQUIRE mutex_ held.
  void Insert(Key key);
  void Grow();

  mutable std::mutex mutex_;
  std::vector<Key> changed_;           // no key twice
  std::vector<std::uint32_t> places_;  // open addressing: place in changed_ plus one, 0 is empty
  std::vector<Key> leaving_;           // to be handed out, from the end
  std::vector<Key> last_;              // handed out, not known to have arrived
  std::uint64_t num_taken_ = 0;
};

}  // namespace sparsefleet
