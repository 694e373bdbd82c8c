// A thread that regularly asks every server whether it is alive.
//
// Each server gets a separate connection for this, so that a long pull does not delay a beat; beats
// also tell the server that the client is alive. A server that is silent for too long on all
// connections is marked lost until it answers again.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "client/server_link.h"
#include "transport/socket.h"

namespace sparsefleet {

struct HeartbeatOptions {
  double interval_s = 2.0;
  double lost_after_s = 10.0;  // a server silent for this long is lost
  double peer_timeout_s = 10.0;
  std::function<std::uint64_t()> acked_below;                         // sent with each beat
  std::function<void(int severity, const std::string& message)> log;  // may be empty
  std::function<bool(std::uint32_t server)> is_restarting = {};       // then its silence is no loss
};

class Heartbeat {
 public:
  // The links must outlive it. kIo if the system is out of pipes or threads.
  static Result<std::unique_ptr<Heartbeat>> Start(
      HeartbeatOptions options, std::span<const std::unique_ptr<ServerLink>> links);
  // Says goodbye to the servers that answer, for at most a second; see KeepSession.
  ~Heartbeat();

  // Whether to end without a goodbye, so that servers keep the session. Any thread.
  void KeepSession(bool keeps) { keeps_session_ = keeps; }

  // The servers were asked to shut down, so their silence is expected. Any thread.
  void ExpectEnd() { expects_end_ = true; }

 private:
  using TimePoint = SteadyClock::time_point;
  struct Beat {
    ServerLink* link = nullptr;
    std::unique_ptr<Connection> connection;
    ReplyBuffer reply;
    bool is_runnable = true;
    bool told_restart = false;
    TimePoint next;   // when the next beat is due
    TimePoint began;  // when this one started
    Status last;      // why the last one failed
  };

  Heartbeat(HeartbeatOptions options, std::span<const std::unique_ptr<ServerLink>> links,
            OwnedSocket wake_read, OwnedSocket wake_write);
  void Run();
  void Advance(Beat& beat, TimePoint now);
  void Begin(Beat& beat, MessageType type, TimePoint now);
  void Failed(Beat& beat, const Status& cause, TimePoint now);
  void Judge(Beat& beat);
  // Waits for a socket, the next beat or the end; false at the end.
  bool Await();
  void SayGoodbye();
  void PollUntil(TimePoint until);
  void Log(int severity, const std::string& message) const;

  const HeartbeatOptions options_;
  std::vector<Beat> beats_;
  TimePoint judges_from_;  // no server is declared lost before this
  std::atomic<bool> expects_end_{false};
  std::atomic<bool> keeps_session_{false};
  std::atomic<bool> stopping_{false};
  OwnedSocket wake_read_;
  OwnedSocket wake_write_;
  std::thread thread_;
};

}  // namespace sparsefleet
