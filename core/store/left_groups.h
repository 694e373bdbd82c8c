// Which members of a store have left their groups. Header only.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "store/round_member.h"
#include "sync/mutex.h"

namespace sparsefleet {

// Servers forget a group once all have left; leaving again would start a new group of that name
// with one member already gone. The store therefore remembers which it has left. Thread-safe.
class LeftGroups {
 public:
  bool HasLeft(const RoundMember& member) const {
    MutexLock lock(mutex_);
    return left_.contains({std::string(member.group), member.rank});
  }
  void SetLeft(const RoundMember& member, bool has_left) {
    MutexLock lock(mutex_);
    std::pair<std::string, std::uint32_t> name{member.group, member.rank};
    if (has_left) {
      left_.insert(std::move(name));
    } else {
      left_.erase(name);
    }
  }

 private:
  mutable Mutex mutex_;
  std::set<std::pair<std::string, std::uint32_t>> left_ GUARDED_BY(mutex_);
};

}  // namespace sparsefleet
