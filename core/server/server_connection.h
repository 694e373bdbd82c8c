// The server's side of a client connection: handshake, hello, then frames.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "server/dispatcher.h"
#include "server/frame_reader.h"
#include "server/output_queue.h"
#include "server/poller.h"
#include "server/server_counters.h"
#include "server/server_log.h"
#include "server/session_table.h"
#include "sync/mutex.h"
#include "transport/channel.h"

namespace sparsefleet {

// The outcome of proving the job key.
enum class ProvenPlace : std::uint8_t {
  kTaken,      // the connection counts as proven
  kNoneFree,   // the limit is reached; the reply to hello says so
  kDisplaced,  // it was just displaced by a newer one and is about to close
};

// Shared by all connections of a server; outlives them.
struct ServerConnectionHost {
  Poller& poller;
  Dispatcher& dispatcher;
  SessionTable& sessions;
  ServerCounters& counters;
  ServerLog& log;
  std::uint64_t max_frame_bytes;
  std::chrono::nanoseconds handshake_timeout;
  std::chrono::nanoseconds frame_timeout;
  std::function<void(std::uint64_t id)> on_answered;       // see Channel::HasAnswered()
  std::function<ProvenPlace(std::uint64_t id)> on_proven;  // may be called again after kNoneFree
  std::function<void(std::uint64_t id)> on_closed;
  std::string full;       // the error for clients over the limit
  std::string lane_name;  // empty: no lane
};

// Thread-safe. Invariant: at most one thread at a time, the runner, works on the socket. A thread
// that finds a runner leaves a note under the lock (a queued reply, a request to close), which the
// runner sees before it leaves. Only pool threads read requests; any thread may write.
class ServerConnection final : public ReplySink,
                               public std::enable_shared_from_this<ServerConnection> {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // traffic: the counters of host for the channel's transport.
  ServerConnection(ServerConnectionHost& host, std::uint64_t id, std::unique_ptr<Channel> channel,
                   std::string address, ServerCounters::Traffic& traffic);

  std::uint64_t id() const { return id_; }
  const std::string& address() const { return address_; }

  // Watches the socket and begins the handshake: a client's first message has often arrived
  // already, and once it is answered, unauthenticated peers cannot displace the client (see
  // Channel::HasAnswered).
  Status Start();
  void OnReady();  // called when the poller reports the socket
  void Send(const FrameHeader& request, Reply reply) override;
  void Abandon() override;

  // Closes once no reply is pending.
  void FinishAndClose();
  // Closes without waiting for replies; a request in progress finishes first.
  void CloseNow();
  // Closes if a deadline has passed; frees memory after a long idle time.
  void Tick(TimePoint now);

  bool BelongsTo(const Session& session) const;

 private:
  enum class Phase : std::uint8_t { kHandshake, kOpen, kLinger };

  // Makes the caller the runner unless there is one; `note` runs under the lock and records why.
  template <typename Note>
  bool Acquire(Note note);
  void Run(bool receive);
  bool Release();
  bool ShouldClose() const;
  bool Quiet() const REQUIRES(mutex_) { return owed_replies_ == 0 && output_.empty(); }
  bool ReadingPaused() const REQUIRES(mutex_);
  void ArmPoller() REQUIRES(mutex_);
  TimePoint NextDeadline() const REQUIRES(mutex_);
  void Queue(const FrameHeader& request, Reply reply) REQUIRES(mutex_);

  bool ContinueHandshake();
  void Receive();
  void ReceiveFrames();
  void HandleFrame();
  void Greet();
  void ReplyWithLane();
  void Flush();
  bool MakeFront();
  void Discard();
  void Fail(const Status& status);
  void FailOutOfMemory();
  void BeginLinger();
  void TimeOut();
  void Close();
  void RefuseStranger(const std::string& why);
  std::string Describe() const;

  ServerConnectionHost& host_;
  const std::uint64_t id_;
  const std::string address_;
  ServerCounters::Traffic& traffic_;
  const TimePoint begun_;

  // Used by the runner only.
  std::unique_ptr<Channel> channel_;
  FrameReader reader_;
  Phase phase_ = Phase::kHandshake;
  bool is_answered_ = false;  // see Channel::HasAnswered()
  bool has_place_ = false;    // see ProvenPlace
  Ready read_wants_ = Ready::kWantRead;
  Ready write_wants_ = Ready::kDone;  // kDone: not blocked
  bool close_wanted_ = false;
  bool write_shut_ = false;
  std::uint64_t bytes_counted_ = 0;
  TimePoint last_read_;
  TimePoint linger_until_;
  TimePoint linger_end_;

  mutable Mutex mutex_;
  bool running_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;
  bool finishing_ GUARDED_BY(mutex_) = false;
  bool close_now_ GUARDED_BY(mutex_) = false;
  std::uint32_t owed_replies_ GUARDED_BY(mutex_) = 0;
  OutputQueue output_ GUARDED_BY(mutex_);
  TimePoint last_write_ GUARDED_BY(mutex_);  // or when output was first queued
  TimePoint deadline_ GUARDED_BY(mutex_) = TimePoint::max();
  std::shared_ptr<Session> session_;  // written by the runner under the lock
};

}  // namespace sparsefleet
