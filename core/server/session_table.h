// The clients of a server by id: connected, lost or forgotten.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/session.h"
#include "sync/mutex.h"
#include "transport/messages.h"

namespace sparsefleet {

// A client is lost when nothing has arrived from it for the peer timeout, or for its grace if that
// is longer; one that holds connections but has never opened a control connection sends no
// heartbeats and gets more time. Thread-safe.
class SessionTable {
 public:
  using TimePoint = Session::TimePoint;
  // A lost client may come back with a retry within this time; then its replies are forgotten.
  static constexpr std::chrono::minutes kForgetAfter{10};
  // A client that has not started heartbeats is lost after this many peer timeouts.
  static constexpr int kGraceBeforeHeartbeats = 3;

  explicit SessionTable(std::chrono::nanoseconds peer_timeout) : peer_timeout_(peer_timeout) {}

  struct Joined {
    std::shared_ptr<Session> session;
    bool was_lost = false;
    bool is_new = false;
  };
  // A connection of the client was opened.
  Joined Join(const HelloRequest& hello, const std::string& address, TimePoint now);
  // It was closed; the client has the peer timeout from `now` to come back.
  void Leave(const Session& session, TimePoint now);
  // The client said goodbye, so its absence is not a loss.
  void End(const Session& session);

  // Calls `drop` for each client lost since the last call. A client that comes back meanwhile joins
  // after that, so that nothing it does is undone.
  void DropLost(TimePoint now, const std::function<void(Session&)>& drop);
  // Reports that the clients with this name have ended: they are lost from now on.
  void DropNamed(std::string_view name, const std::function<void(Session&)>& drop);

  // Reports that the clients with this name are being restarted: their silence starts again.
  // Returns how many are known and neither connected nor lost.
  std::size_t ExpectNamed(std::string_view name, TimePoint now);

  // For snapshots and recovery.
  std::vector<std::shared_ptr<Session>> All() const;
  std::shared_ptr<Session> Find(std::uint64_t id) const;  // null if there is none
  // A client known before a restart: it may come back within the peer timeout from `now`.
  std::shared_ptr<Session> Restore(std::uint64_t id, std::uint64_t number, const std::string& name,
                                   TimePoint now);
  void Remove(std::uint64_t id);

  std::size_t size() const;                    // clients that are not lost
  bool HasNamed(std::string_view name) const;  // whether one of them has this name
  bool HasId(std::uint64_t id) const;          // whether one of them has this id
  bool HasNumber(std::uint64_t number) const;  // whether one of them has this session

 private:
  struct Entry {
    std::shared_ptr<Session> session;
    std::size_t connections = 0;
    bool has_heartbeats = false;
    bool lost = false;
  };
  std::vector<std::shared_ptr<Session>> TakeLost(TimePoint now);

  const std::chrono::nanoseconds peer_timeout_;
  Mutex coming_or_going_;  // held while a client joins, and while lost ones are dropped
  mutable Mutex mutex_;
  std::uint64_t next_number_ GUARDED_BY(mutex_) = 1;
  std::unordered_map<std::uint64_t, Entry> entries_ GUARDED_BY(mutex_);
};

}  // namespace sparsefleet
