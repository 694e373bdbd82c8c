// Copies of the logs of servers, kept by a process on another machine. It checks records and writes
// them; it does not know what they mean.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "log/file_calls.h"
#include "replica/replica_messages.h"
#include "status/status.h"
#include "store/store.h"
#include "sync/mutex.h"
#include "transport/frame.h"

namespace sparsefleet {

struct ReplicaStoreOptions {
  std::string directory;              // each server has a directory of its own below it
  bool sync = true;                   // answers wait until records are on the disk
  std::uint32_t end_of_snapshot = 0;  // the type of a snapshot's last record
  FileCalls* calls = nullptr;         // null: the system's
};

// Thread-safe: requests of different servers run in parallel.
class ReplicaStore {
 public:
  explicit ReplicaStore(ReplicaStoreOptions options);
  ~ReplicaStore();

  // Carries out a request of one of the four types; returns the body of the reply. kNotOwner for a
  // process that has a successor.
  Result<Body> Handle(MessageType type, std::span<const std::byte> body);
  void AddStats(StatMap& stats) const;

 private:
  struct Held;
  Result<std::shared_ptr<Held>> Find(std::uint32_t server);

  const ReplicaStoreOptions options_;
  mutable Mutex mutex_;
  std::map<std::uint32_t, std::shared_ptr<Held>> held_ GUARDED_BY(mutex_);
};

}  // namespace sparsefleet
