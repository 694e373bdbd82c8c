// The clients of a server by id: who is here, who is lost, who is forgotten.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/session.h"
#include "transport/messages.h"

namespace sparsefleet {

// A client is lost when nothing came from it for the peer timeout; one that holds
// connections but never opened a control connection sends no heartbeats and is not judged.
// Thread-safe.
class SessionTable {
 public:
  using TimePoint = Session::TimePoint;
  // A lost client may come back with a retry within this; then its replies are forgotten.
  static constexpr std::chrono::minutes kForgetAfter{10};
  // A client that has not begun its heartbeats is lost after so many times the peer timeout.
  static constexpr int kGraceBeforeHeartbeats = 3;

  explicit SessionTable(std::chrono::nanoseconds peer_timeout) : peer_timeout_(peer_timeout) {}

  struct Joined {
    std::shared_ptr<Session> session;
    bool was_lost = false;
  };
  // A connection of the client has begun.
  Joined Join(const HelloRequest& hello, const std::string& address, TimePoint now);
  // It has ended; the client has the peer timeout from `now` to come back.
  void Leave(const Session& session, TimePoint now);
  // The client said goodbye: it is not missed.
  void End(const Session& session);

  // Those who are lost since the last call.
  std::vector<std::shared_ptr<Session>> TakeLost(TimePoint now);

  std::size_t size() const;                    // clients that are not lost
  bool HasNamed(std::string_view name) const;  // whether one of them is called so

 private:
  struct Entry {
    std::shared_ptr<Session> session;
    std::size_t connections = 0;
    bool has_heartbeats = false;
    bool lost = false;
  };
  const std::chrono::nanoseconds peer_timeout_;
  mutable std::mutex mutex_;
  std::uint64_t next_number_ = 1;
  std::unordered_map<std::uint64_t, Entry> entries_;
};

}  // namespace sparsefleet
