// The connections that have not yet proven the job key, and which to drop for a new one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

namespace sparsefleet {

// Connections are identified by ids that increase over time: the lowest id is the oldest.
// Not thread-safe.
class UnprovenConnections {
 public:
  UnprovenConnections(std::size_t limit, std::size_t limit_per_address)
      : limit_(limit), limit_per_address_(limit_per_address) {}

  // Adds a connection. If that exceeds a limit, removes and returns the one to drop: the oldest
  // from the same address, or, over the total limit, the oldest from the address with the most
  // connections. A flood therefore pushes out its own connections first. Threads may add
  // connections out of order, so it can be the added one itself.
  std::optional<std::uint64_t> Add(std::uint64_t id, const std::string& address);

  // Returns the address of the removed connection, or nothing if it is unknown.
  std::optional<std::string> Remove(std::uint64_t id);

  // Removes and returns the oldest of all.
  std::optional<std::uint64_t> TakeOldest();

  std::size_t size() const { return address_of_.size(); }

 private:
  using Ids = std::set<std::uint64_t>;

  const std::size_t limit_;
  const std::size_t limit_per_address_;
  std::map<std::uint64_t, std::string> address_of_;
  std::unordered_map<std::string, Ids> by_address_;  // no set is empty
};

}  // namespace sparsefleet
