#include "server/unproven_connections.h"

#include <algorithm>
#include <utility>

namespace sparsefleet {

std::optional<std::uint64_t> UnprovenConnections::Add(std::uint64_t id,
                                                      const std::string& address) {
  address_of_.emplace(id, address);
  Ids& same = by_address_[address];
  same.insert(id);
  const Ids* crowd = &same;
  if (crowd->size() <= limit_per_address_) {
    if (size() <= limit_) return std::nullopt;
    // Among equally busy addresses, pick the one with the oldest connection.
    const auto rank = [](const auto& entry) {
      return std::pair(entry.second.size(), ~*entry.second.begin());
    };
    crowd = &std::ranges::max_element(by_address_, {}, rank)->second;
  }
  const std::uint64_t oldest = *crowd->begin();
  Remove(oldest);
  return oldest;
}

std::optional<std::string> UnprovenConnections::Remove(std::uint64_t id) {
  const auto found = address_of_.find(id);
  if (found == address_of_.end()) return std::nullopt;
  const auto same = by_address_.find(found->second);
  same->second.erase(id);
  if (same->second.empty()) by_address_.erase(same);
  std::string address = std::move(found->second);
  address_of_.erase(found);
  return address;
}

std::optional<std::uint64_t> UnprovenConnections::TakeOldest() {
  if (address_of_.empty()) return std::nullopt;
  const std::uint64_t oldest = address_of_.begin()->first;
  Remove(oldest);
  return oldest;
}

}  // namespace sparsefleet
