// The numbers of a client's recorded requests in one window, and which of them are still open.
// Thread-safe.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>

namespace sparsefleet {

class Sequences {
 public:
  std::uint64_t Open() {
    std::lock_guard lock(mutex_);
    open_.insert(open_.end(), next_);
    return next_++;
  }

  // The call has its replies, or has given up: it will not be sent again.
  void Close(std::uint64_t sequence) {
    std::lock_guard lock(mutex_);
    open_.erase(sequence);
  }

  // All numbers below this are closed; servers need not remember their replies.
  std::uint64_t AckedBelow() const {
    std::lock_guard lock(mutex_);
    return open_.empty() ? next_ : *open_.begin();
  }

 private:
  mutable std::mutex mutex_;
  std::uint64_t next_ = 1;
  std::set<std::uint64_t> open_;
};

}  // namespace sparsefleet
