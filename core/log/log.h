// An append-only log of numbered records in segments. Format: docs/log_format.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "log/log_directory.h"
#include "log/record_file.h"
#include "log/segment_memory.h"
#include "log/spare_preparer.h"
#include "status/status.h"

namespace sparsefleet {

struct LogOptions {
  std::uint64_t owner = 1;                    // the server's incarnation
  std::uint64_t segment_bytes = 64ull << 20;  // a segment ends once it has this many
  // A separate thread prepares the next segment while the processor is idle. Takes the space of one
  // segment more, once the log has a quarter of one.
  bool prepares_segments = false;
  // Whether Sync() is called. If not, segments are closed when they end, and records are copied to
  // reused segments through memory, which takes a third of the time.
  bool is_synced = true;
};

// Thread-safe.
class Log {
 public:
  // Starts a new segment at record `next_lsn`. `directory` must outlive the log.
  static Result<std::unique_ptr<Log>> Begin(const LogDirectory& directory, std::uint64_t next_lsn,
                                            const LogOptions& options);

  // Writes a record and returns its number. The record survives the process, but a power loss only
  // after Sync(). After an error the record does not exist; the next call may succeed, unless
  // is_broken(). If the disk is full, the record is held in memory, and so is every later one:
  // num_held() says how many do not survive the process yet.
  Result<std::uint64_t> Append(std::uint32_t type, std::span<const iovec> payload);
  // The same for complete records from another log, starting with the next number; returns the
  // number after the last. REQUIRES: `next_lsn` is that number.
  Status AppendWhole(std::span<const std::byte> records, std::uint64_t next_lsn);
  // Writes the held records. kDiskFull if some are left.
  Status WriteHeld();
  // Ends the segment; returns the number of the next record. kDiskFull while records are held.
  Result<std::uint64_t> Rotate();
  // Blocks until all records appended before the call are on disk; returns the number of the first
  // record that may not be. An error breaks the log permanently.
  Result<std::uint64_t> Sync();

  // How far the last segment is written.
  struct Tail {
    std::uint64_t segment = 0;   // the number in its name
    std::uint64_t bytes = 0;     // of it
    std::uint64_t next_lsn = 0;  // of the record to be written next
  };
  Tail tail() const;
  std::uint64_t next_lsn() const;
  std::uint64_t bytes() const;  // appended since Begin()
  // Reads no lock: called for every reply.
  std::size_t num_held() const { return num_held_.load(std::memory_order_acquire); }
  // Whether the log accepts no more records.
  bool is_broken() const;

 private:
  Log(const LogDirectory& directory, const LogOptions& options, std::uint64_t next_lsn)
      : directory_(directory), options_(options), next_lsn_(next_lsn) {}
  struct Held {
    std::uint32_t type = 0;
    std::vector<std::byte> payload;
  };
  // REQUIRES: mutex_ held.
  Status BeginSegment();
  Status Write(std::uint64_t lsn, std::uint32_t type, const Payload& payload);
  std::uint64_t written_lsn() const { return next_lsn_ - held_.size(); }

  const LogDirectory& directory_;
  const LogOptions options_;
  mutable std::mutex mutex_;  // guards the members below
  std::uint64_t next_lsn_;
  std::uint64_t segment_ = 0;  // the first record of the last segment
  std::uint64_t bytes_ = 0;
  Status broken_;
  std::shared_ptr<RecordWriter> writer_;
  std::vector<std::shared_ptr<RecordWriter>> ended_;  // ended segments not synced yet
  SegmentMemories memories_;
  std::deque<Held> held_;  // the last records before next_lsn_
  std::atomic<std::size_t> num_held_{0};
  bool has_requested_spare_ = false;         // for the next segment
  std::unique_ptr<SparePreparer> preparer_;  // null: the next segment is not prepared
};

// Writes a snapshot: the state after all records below `lsn`. Not thread-safe.
class SnapshotWriter {
 public:
  static Result<std::unique_ptr<SnapshotWriter>> Begin(const LogDirectory& directory,
                                                       std::uint64_t owner, std::uint64_t lsn);
  ~SnapshotWriter();  // removes an uncommitted snapshot

  Status Append(std::uint32_t type, std::span<const iovec> payload);
  // Ends the snapshot with a record of this type, gives it its final name and removes what it
  // replaces. `sync`: make this survive a power loss too.
  Status Commit(std::uint32_t end_type, bool sync);
  std::uint64_t bytes() const { return writer_->bytes(); }
  std::uint64_t lsn() const { return lsn_; }

 private:
  SnapshotWriter(const LogDirectory& directory, std::uint64_t lsn, std::string path)
      : directory_(directory), lsn_(lsn), path_(std::move(path)), next_(lsn) {}
  const LogDirectory& directory_;
  const std::uint64_t lsn_;
  const std::string path_;
  std::uint64_t next_;
  std::unique_ptr<RecordWriter> writer_;
  bool is_committed_ = false;
};

}  // namespace sparsefleet
