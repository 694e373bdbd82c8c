// The log of a server as its parts use it: requests, created rows, and when a reply may be sent.
// Record format: docs/log_format.md.
//
// Whoever changes logged state holds Enter() from before the append until the change is complete
// and its reply is stored; a snapshot starts under EnterAlone(). A change is therefore either in
// the snapshot or in the log after it. Enter() is taken before any table lock and never twice.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "log/group_commit.h"
#include "log/log.h"
#include "log/log_directory.h"
#include "monitor/histogram.h"
#include "replica/replica_link.h"
#include "status/status.h"
#include "store/store.h"
#include "sync/mutex.h"
#include "table/birth_log.h"
#include "table/cut_gate.h"
#include "transport/frame.h"
#include "transport/messages.h"

namespace sparsefleet {

enum class Durability : std::uint8_t {
  kOff,      // nothing is kept
  kProcess,  // replies wait until the record is written: it outlives the process
  kDisk,     // and until it is on the disk: it outlives a loss of power
  kReplica,  // and until another machine has it: it outlives the loss of this one
};

// Format: append only.
enum class LogRecord : std::uint32_t {
  kSession = 1,
  kSessionEnd = 2,
  kRequest = 3,
  kPush = 4,
  kRound = 5,
  kBirths = 6,
  kErased = 7,
  kShrunk = 8,
  kAnswered = 9,
  kMember = 10,
  kGroupGone = 11,
  kRemovals = 12,
  kCommand = 13,
  kCommandState = 14,
  // Only in snapshots.
  kSparseTable = 101,
  kRows = 102,
  kWords = 103,
  kDenseTable = 104,
  kNote = 105,
  kGroupRound = 106,
  kWatch = 107,
  kEndOfSnapshot = 199,
};

// The part of the causing request that a record keeps. Format: do not change.
struct RequestHead {
  std::uint64_t client_id = 0;
  std::uint64_t sequence = 0;
  std::uint64_t acked_below = 0;
  std::uint32_t seconds = 0;  // since 1970, for tables that record it
  std::uint8_t type = 0;
  std::uint8_t reserved[3] = {};
};
static_assert(sizeof(RequestHead) == 32);

struct JournalOptions {
  Durability durability = Durability::kOff;
  std::string directory;
  double lock_wait_s = 10.0;  // for a predecessor that is just ending
  bool take_over = false;     // a predecessor that still runs is killed
  std::uint64_t segment_bytes = 64ull << 20;
  std::uint64_t snapshot_bytes = 1ull << 30;  // a snapshot is due after this much log, or earlier
  FileCalls* calls = nullptr;                 // null: the system's
  ReplicaLinkOptions replica;                 // kReplica; without its callbacks
  double space_wait_s = 60.0;                 // at the start, for space on a full disk
  // The log is broken: no reply may go out any more.
  std::function<void(const Status&)> on_failure;
  std::function<void(int severity, const std::string&)> log;
};

// Thread-safe after Recover().
class Journal final : public BirthLog {
 public:
  // Locks the directory; with a replica, takes over from any predecessor and fetches what it left.
  static Result<std::unique_ptr<Journal>> Open(JournalOptions options);
  ~Journal() override;

  // Passes on the contents of the directory, then starts logging. A new directory gets
  // `incarnation`. `after_snapshot` as in LogDirectory::Recover().
  Status Recover(std::uint64_t incarnation, const LogDirectory::Visit& visit,
                 const std::function<Status()>& after_snapshot = {});
  std::uint64_t incarnation() const { return owner_; }

  std::shared_lock<std::shared_mutex> Enter() override { return gate_.EnterWriter(); }
  std::unique_lock<std::shared_mutex> EnterAlone() { return gate_.EnterCut(); }

  // If the disk is full, records are held in memory, and replies wait until they are written: then
  // is_full(), and new changes should be rejected with FullStatus().
  Status Append(LogRecord type, std::span<const iovec> pieces);
  Status Append(LogRecord type, std::span<const std::byte> payload);
  // A request with its header.
  Status Append(LogRecord type, const RequestHead& head, std::span<const iovec> body);
  Status Append(std::string_view table, std::span<const Key> keys, std::uint64_t step,
                std::uint32_t seconds) override;

  // Calls `done` once everything appended so far has the requested durability; never after the log
  // has broken.
  void WhenDurable(std::function<void()> done);
  bool is_full() const { return is_full_.load(std::memory_order_acquire); }
  // kDiskFull with the path, the free space and what to do. REQUIRES: it is or was full.
  Status FullStatus() const;
  // No longer waits for a replica or for space: replies that do are not sent.
  void Interrupt();
  // Interrupts, and ends the thread that sends replies once they are durable. Not thread-safe.
  void Stop();

  // REQUIRES: EnterAlone() is held. Starts a segment, whose first record is the first one after the
  // snapshot.
  Result<std::uint64_t> BeginSnapshot();
  Result<std::unique_ptr<SnapshotWriter>> WriteSnapshot(std::uint64_t lsn) const;
  Status CommitSnapshot(SnapshotWriter& snapshot, double seconds);
  // Whether the log is so long that a recovery would take long, or much longer than the last
  // snapshot, and in either case longer than half of it.
  bool IsSnapshotDue() const;
  // Counts rows that the appended records change, since replaying them costs more than their bytes
  // do.
  void CountRows(std::size_t rows) { rows_.fetch_add(rows, std::memory_order_relaxed); }

  void AddStats(StatMap& stats) const;
  std::atomic<std::uint64_t> duplicates_dropped{0};

 private:
  explicit Journal(JournalOptions options) : options_(std::move(options)) {}
  void Report(int severity, const std::string& text) const {
    if (options_.log) options_.log(severity, text);
  }
  // Repeats `write` while the disk is full, for at most space_wait_s.
  Status AwaitSpaceToStart(const std::function<Status()>& write) const;
  void BeginFull();
  // Blocks until no record is held.
  Status AwaitSpace();
  Result<std::uint64_t> MakeDurable();

  const JournalOptions options_;
  std::unique_ptr<LogDirectory> directory_;
  std::uint64_t owner_ = 0;
  Recovered recovered_;
  double recovery_s_ = 0;
  CutGate gate_;
  std::unique_ptr<Log> log_;
  std::unique_ptr<ReplicaLink> replica_;  // kReplica
  std::atomic<bool> is_full_{false};
  mutable Mutex full_mutex_;
  CondVar interrupted_;
  bool is_interrupted_ GUARDED_BY(full_mutex_) = false;
  std::string full_cause_ GUARDED_BY(full_mutex_);
  std::chrono::steady_clock::time_point full_since_ GUARDED_BY(full_mutex_);
  double full_s_ GUARDED_BY(full_mutex_) = 0;  // in all, without the current time
  std::uint64_t times_full_ GUARDED_BY(full_mutex_) = 0;
  std::atomic<std::uint64_t> rows_{0};  // since the last snapshot
  std::atomic<std::uint64_t> bytes_at_snapshot_{0};
  std::atomic<std::uint64_t> snapshot_size_{0};
  std::atomic<std::uint64_t> snapshots_{0};
  std::atomic<double> snapshot_s_{0};
  DurationHistogram append_times_;
  DurationHistogram sync_times_;
  std::unique_ptr<GroupCommit> commit_;  // last: its thread uses the members above
};

}  // namespace sparsefleet
