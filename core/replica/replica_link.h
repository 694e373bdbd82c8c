// A durable server's end of its replica: takes over from predecessors, fetches what they left, and
// ships log and snapshots.
//
// The replica decides who may write: it knows the epoch of the last process that took over, and
// rejects earlier ones. So a server begins only when its replica answers, and acknowledges only
// what the replica holds, unless the replica is lost for longer than `wait_s`.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>

#include "client/client.h"
#include "log/log.h"
#include "log/log_cursor.h"
#include "log/log_directory.h"
#include "replica/replica_messages.h"
#include "status/status.h"
#include "store/store.h"
#include "sync/mutex.h"
#include "transport/security.h"

namespace sparsefleet {

struct ReplicaLinkOptions {
  std::string endpoint;  // of the replica
  SecurityOptions security;
  std::uint32_t server = 0;  // index of this server
  double start_wait_s = 60;  // Open(): for a replica that does not answer
  // Replies wait this long for a replica that is lost; then they go out without it.
  double wait_s = std::numeric_limits<double>::infinity();
  std::uint32_t end_of_snapshot = 0;  // the type of a snapshot's last record
  std::function<void(int severity, const std::string&)> log;
  // A successor has taken over: nothing may be acknowledged any more.
  std::function<void(const Status&)> on_fenced;
};

// Thread-safe after Start().
class ReplicaLink {
 public:
  // Reaches the replica and takes over; fetches what `directory` lacks. `directory` must outlive
  // it.
  static Result<std::unique_ptr<ReplicaLink>> Open(const LogDirectory& directory,
                                                   ReplicaLinkOptions options);
  ~ReplicaLink();

  // From now on the records of `log` can be shipped, which must outlive it.
  void Start(const Log& log, std::uint64_t owner);
  // Ends all waits with kShuttingDown.
  void Stop();

  // Blocks until the replica holds all records below `end`, or the server continues without it.
  // kNotOwner after a successor has taken over.
  Status AwaitRecords(std::uint64_t end);
  // The same for a snapshot that is in the directory.
  Status AwaitSnapshot(std::uint64_t lsn);

  void AddStats(StatMap& stats) const;

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  ReplicaLink(const LogDirectory& directory, ReplicaLinkOptions options);
  ReplicaHead Head() const REQUIRES(io_);
  Status Connect(double timeout_s) REQUIRES(io_);
  Result<ReplicaState> Enter(bool claims) REQUIRES(io_);
  // `more_bytes`: bytes that the replica must read or write before it answers.
  Result<Body> Ask(MessageType type, GatheredBody body, std::uint64_t more_bytes = 0) REQUIRES(io_);
  Status TakeOver() REQUIRES(io_);
  Status Fetch(const ReplicaState& state) REQUIRES(io_);
  Status FetchFile(bool is_snapshot, std::uint64_t lsn, const std::string& path) REQUIRES(io_);

  // Each connects if need be.
  Status ShipRecords(std::uint64_t end) REQUIRES(io_);
  Status ShipNewestSnapshot() REQUIRES(io_);
  Status ShipPart(std::uint64_t lsn, int fd, std::uint64_t size, std::uint64_t& offset)
      REQUIRES(io_);
  Status EnsureConnected() REQUIRES(io_);

  // Decides after a try whether to retry and, if not, with which result to end.
  std::optional<Status> Judge(const Status& outcome);
  void Pause();
  void NoteLost(const Status& why);
  void NoteBack();
  void Watch(const std::stop_token& stop);

  const LogDirectory& directory_;
  const ReplicaLinkOptions options_;
  const Log* log_ = nullptr;
  std::atomic<bool> is_stopping_{false};

  Mutex io_;  // held during a request
  std::unique_ptr<Client> client_ GUARDED_BY(io_);
  std::uint64_t epoch_ GUARDED_BY(io_) = 0;
  std::uint64_t owner_ GUARDED_BY(io_) = 0;
  std::uint64_t replica_next_ GUARDED_BY(io_) = 0;
  LogCursor cursor_ GUARDED_BY(io_);

  mutable Mutex mutex_;
  CondVar changed_;
  Status fenced_ GUARDED_BY(mutex_);
  std::optional<TimePoint> lost_since_ GUARDED_BY(mutex_);
  bool is_degraded_ GUARDED_BY(mutex_) = false;
  std::uint64_t losses_ GUARDED_BY(mutex_) = 0;
  std::atomic<std::uint64_t> shipped_end_{0};
  std::atomic<std::uint64_t> shipped_bytes_{0};
  std::atomic<std::uint64_t> shipped_snapshot_{0};
  std::atomic<std::uint64_t> known_epoch_{0};
  std::jthread watcher_;  // last: it uses the others
};

}  // namespace sparsefleet
