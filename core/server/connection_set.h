// The open connections of a server. Header only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "server/connection_limits.h"
#include "server/server_connection.h"
#include "server/unproven_connections.h"
#include "sync/mutex.h"

namespace sparsefleet {

// Thread-safe. Invariant: a connection that has proven the key is never dropped for another one.
class ConnectionSet {
 public:
  using Pointer = std::shared_ptr<ServerConnection>;

  explicit ConnectionSet(const ConnectionLimits& limits)
      : limits_(limits),
        silent_(limits.unproven - limits.unproven / 2, Half(limits.unproven_per_address)),
        answered_(Half(limits.unproven), Half(limits.unproven_per_address)) {}

  struct Added {
    bool is_added = false;  // false: the set is sealed
    Pointer displaced;      // the caller must close it; may be null
  };
  // Adds a connection that has not proven the key yet; may displace another such connection.
  Added Add(const Pointer& connection, const std::string& address) {
    MutexLock lock(mutex_);
    if (sealed_) return {};
    const auto displaced = silent_.Add(connection->id(), address);
    connections_.emplace(connection->id(), Entry{connection, false});
    return {true, displaced ? Locate(*displaced) : nullptr};
  }

  // The connection's first message was valid (see Channel::HasAnswered). From now on only other
  // connections of this kind can displace it. Returns one that the caller must close, or null.
  Pointer MarkAnswered(std::uint64_t id) {
    MutexLock lock(mutex_);
    const auto address = silent_.Remove(id);
    if (!address) return nullptr;  // displaced already
    const auto displaced = answered_.Add(id, *address);
    return displaced ? Locate(*displaced) : nullptr;
  }

  // The connection has proven the key: it can no longer be displaced, if the limit allows it.
  ProvenPlace MarkProven(std::uint64_t id) {
    MutexLock lock(mutex_);
    const auto it = connections_.find(id);
    if (it == connections_.end()) return ProvenPlace::kDisplaced;
    if (it->second.is_proven) return ProvenPlace::kTaken;
    if (num_proven_ >= limits_.proven) return ProvenPlace::kNoneFree;
    if (!RemoveUnproven(id)) return ProvenPlace::kDisplaced;
    it->second.is_proven = true;
    ++num_proven_;
    return ProvenPlace::kTaken;
  }

  // Removes the oldest connection that has not proven the key from the count. The caller must
  // close it. Null if there is none.
  Pointer TakeOldestUnproven() {
    MutexLock lock(mutex_);
    auto oldest = silent_.TakeOldest();
    if (!oldest) oldest = answered_.TakeOldest();
    return oldest ? Locate(*oldest) : nullptr;
  }

  void Remove(std::uint64_t id) {
    Pointer removed;  // freed outside the lock
    {
      MutexLock lock(mutex_);
      const auto it = connections_.find(id);
      if (it == connections_.end()) return;
      removed = std::move(it->second.connection);
      if (it->second.is_proven) --num_proven_;
      RemoveUnproven(id);
      connections_.erase(it);
    }
    changed_.notify_all();
  }

  Pointer Find(std::uint64_t id) const {
    MutexLock lock(mutex_);
    return Locate(id);
  }

  std::vector<Pointer> All() const {
    MutexLock lock(mutex_);
    std::vector<Pointer> all;
    all.reserve(connections_.size());
    for (const auto& [id, entry] : connections_) all.push_back(entry.connection);
    return all;
  }

  std::size_t size() const {
    MutexLock lock(mutex_);
    return connections_.size();
  }

  std::size_t num_unproven() const {
    MutexLock lock(mutex_);
    return silent_.size() + answered_.size();
  }

  // Those among num_unproven() whose first message was valid.
  std::size_t num_answered() const {
    MutexLock lock(mutex_);
    return answered_.size();
  }

  const ConnectionLimits& limits() const { return limits_; }

  // Accepts no further connections.
  void Seal() {
    MutexLock lock(mutex_);
    sealed_ = true;
  }

  // True when all are gone, false if some are left at the deadline.
  bool AwaitEmpty(std::chrono::steady_clock::time_point deadline) {
    MutexLock lock(mutex_);
    return changed_.WaitUntil(mutex_, deadline,
                              [&]() REQUIRES(mutex_) { return connections_.empty(); });
  }

 private:
  struct Entry {
    Pointer connection;
    bool is_proven = false;
  };

  static std::size_t Half(std::size_t count) { return std::max<std::size_t>(1, count / 2); }

  bool RemoveUnproven(std::uint64_t id) REQUIRES(mutex_) {
    return silent_.Remove(id).has_value() || answered_.Remove(id).has_value();
  }
  Pointer Locate(std::uint64_t id) const REQUIRES(mutex_) {
    const auto it = connections_.find(id);
    return it == connections_.end() ? nullptr : it->second.connection;
  }

  const ConnectionLimits limits_;
  mutable Mutex mutex_;
  CondVar changed_;
  bool sealed_ GUARDED_BY(mutex_) = false;
  std::unordered_map<std::uint64_t, Entry> connections_ GUARDED_BY(mutex_);
  // Connections that have not proven the key, before and after their first valid message.
  UnprovenConnections silent_ GUARDED_BY(mutex_);
  UnprovenConnections answered_ GUARDED_BY(mutex_);
  std::size_t num_proven_ GUARDED_BY(mutex_) = 0;
};

}  // namespace sparsefleet
