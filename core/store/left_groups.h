// Which members of a store have left their groups. Header only.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "store/round_member.h"

namespace sparsefleet {

// Where all have left, servers forget a group; leaving it again would be the beginning of another
// group of that name, with a member gone. So the store remembers it.
// Thread-safe.
class LeftGroups {
 public:
  bool HasLeft(const RoundMember& member) const {
    std::lock_guard lock(mutex_);
    return left_.contains({std::string(member.group), member.rank});
  }
  void SetLeft(const RoundMember& member, bool has_left) {
    std::lock_guard lock(mutex_);
    std::pair<std::string, std::uint32_t> name{member.group, member.rank};
    if (has_left) {
      left_.insert(std::move(name));
    } else {
      left_.erase(name);
    }
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::pair<std::string, std::uint32_t>> left_;
};

}  // namespace sparsefleet
