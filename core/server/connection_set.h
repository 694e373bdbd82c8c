// The open connections of a server. Header only.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "server/server_connection.h"

namespace sparsefleet {

// Thread-safe.
class ConnectionSet {
 public:
  // False if the set takes no more: it is sealed or holds `limit`.
  bool Add(const std::shared_ptr<ServerConnection>& connection, std::size_t limit) {
    std::lock_guard lock(mutex_);
    if (sealed_ || connections_.size() >= limit) return false;
    connections_.emplace(connection->id(), connection);
    return true;
  }

  void Remove(std::uint64_t id) {
    std::shared_ptr<ServerConnection> removed;  // freed outside the lock
    {
      std::lock_guard lock(mutex_);
      const auto it = connections_.find(id);
      if (it == connections_.end()) return;
      removed = std::move(it->second);
      connections_.erase(it);
    }
    changed_.notify_all();
  }

  std::shared_ptr<ServerConnection> Find(std::uint64_t id) const {
    std::lock_guard lock(mutex_);
    const auto it = connections_.find(id);
    return it == connections_.end() ? nullptr : it->second;
  }

  std::vector<std::shared_ptr<ServerConnection>> All() const {
    std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<ServerConnection>> all;
    all.reserve(connections_.size());
    for (const auto& [id, connection] : connections_) all.push_back(connection);
    return all;
  }

  std::size_t size() const {
    std::lock_guard lock(mutex_);
    return connections_.size();
  }

  // Takes no further connection from now on.
  void Seal() {
    std::lock_guard lock(mutex_);
    sealed_ = true;
  }

  // True when all are gone, false if some are left at the deadline.
  bool AwaitEmpty(std::chrono::steady_clock::time_point deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline, [&] { return connections_.empty(); });
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool sealed_ = false;
  std::unordered_map<std::uint64_t, std::shared_ptr<ServerConnection>> connections_;
};

}  // namespace sparsefleet
