// One connection of a client, as the server drives it: handshake, hello, then frames.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "server/dispatcher.h"
#include "server/frame_reader.h"
#include "server/output_queue.h"
#include "server/poller.h"
#include "server/server_counters.h"
#include "server/server_log.h"
#include "server/session_table.h"
#include "transport/channel.h"

namespace sparsefleet {

// What all connections of a server share. Outlives them.
struct ServerConnectionHost {
  Poller& poller;
  Dispatcher& dispatcher;
  SessionTable& sessions;
  ServerCounters& counters;
  ServerLog& log;
  std::uint64_t max_frame_bytes;
  std::chrono::nanoseconds handshake_timeout;
  std::chrono::nanoseconds frame_timeout;
  std::function<void(std::uint64_t id)> on_closed;
  std::string lane_name;  // empty: there is none
};

// Thread-safe. Invariant: at most one thread at a time, the runner, works on the socket. Who finds
// a runner at work leaves a note under the lock (a queued reply, a wish to close), which the runner
// sees before it leaves. Only threads of the pool read requests; any thread may write.
class ServerConnection final : public ReplySink,
                               public std::enable_shared_from_this<ServerConnection> {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  ServerConnection(ServerConnectionHost& host, std::uint64_t id, std::unique_ptr<Channel> channel,
                   std::string address);

  std::uint64_t id() const { return id_; }

  Status Start();  // watches the socket
  void OnReady();  // the poller reported it
  void Send(const FrameHeader& request, Reply reply) override;
  void Abandon() override;

  // Closes as soon as no reply is owed any more.
  void FinishAndClose();
  // Closes without regard to replies; a request under way is finished first.
  void CloseNow();
  // Closes if a deadline has passed; gives back memory if it has been idle for long.
  void Tick(TimePoint now);

  bool BelongsTo(const Session& session) const;

 private:
  enum class Phase : std::uint8_t { kHandshake, kOpen, kLinger };

  // Makes the caller the runner, unless there is one; `note`, under the lock, says why.
  template <typename Note>
  bool Acquire(Note note);
  void Run(bool receive);
  bool Release();
  bool ShouldClose() const;
  // These REQUIRE mutex_ held.
  bool Quiet() const { return owed_replies_ == 0 && output_.empty(); }
  bool ReadingPaused() const;
  void ArmPoller();
  TimePoint NextDeadline() const;
  void Queue(const FrameHeader& request, Reply reply);

  bool ContinueHandshake();
  void Receive();
  void ReceiveFrames();
  void HandleFrame();
  void Greet();
  void TellLane();
  void Flush();
  bool MakeFront();
  void Discard();
  void Fail(const Status& status);
  void BeginLinger();
  void TimeOut();
  void Close();
  void RefuseStranger(const std::string& why);
  std::string Describe() const;

  ServerConnectionHost& host_;
  const std::uint64_t id_;
  const std::string address_;
  const TimePoint begun_;

  // The runner's alone.
  std::unique_ptr<Channel> channel_;
  FrameReader reader_;
  Phase phase_ = Phase::kHandshake;
  Ready read_wants_ = Ready::kWantRead;
  Ready write_wants_ = Ready::kDone;  // kDone: not blocked
  bool close_wanted_ = false;
  bool write_shut_ = false;
  std::uint64_t bytes_counted_ = 0;
  TimePoint last_read_;
  TimePoint linger_until_;

  mutable std::mutex mutex_;  // guards what follows
  bool running_ = false;
  bool closed_ = false;
  bool finishing_ = false;
  bool close_now_ = false;
  std::uint32_t owed_replies_ = 0;
  OutputQueue output_;
  TimePoint last_write_;  // or when the output began to wait
  TimePoint deadline_ = TimePoint::max();
  std::shared_ptr<Session> session_;  // written by the runner under the lock
};

}  // namespace sparsefleet
