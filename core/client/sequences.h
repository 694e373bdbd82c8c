// Sequence numbers of a client's recorded requests in one window, and which are still open.
// Thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <set>

#include "sync/mutex.h"

namespace sparsefleet {

class Sequences {
 public:
  std::uint64_t Open() {
    MutexLock lock(mutex_);
    open_.insert(open_.end(), next_);
    return next_++;
  }

  // Continues from here, unless the numbers are already past it.
  void BeginAt(std::uint64_t next) {
    MutexLock lock(mutex_);
    next_ = std::max(next_, next);
  }

  // The call has its replies or has given up: it will not be sent again.
  void Close(std::uint64_t sequence) {
    MutexLock lock(mutex_);
    open_.erase(sequence);
  }

  // All numbers below this are closed; servers may forget their replies.
  std::uint64_t AckedBelow() const {
    MutexLock lock(mutex_);
    return open_.empty() ? next_ : *open_.begin();
  }

 private:
  mutable Mutex mutex_;
  std::uint64_t next_ GUARDED_BY(mutex_) = 1;
  std::set<std::uint64_t> open_ GUARDED_BY(mutex_);
};

}  // namespace sparsefleet
