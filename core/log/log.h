// An append-only log of numbered records in segments. Format: docs/log_format.md.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "log/log_directory.h"
#include "log/record_file.h"
#include "status/status.h"

namespace sparsefleet {

struct LogOptions {
  std::uint64_t owner = 1;                    // the server's incarnation
  std::uint64_t segment_bytes = 64ull << 20;  // a segment that has this many ends
};

// Thread-safe.
class Log {
 public:
  // Begins a new segment with record `next_lsn`. `directory` must outlive the log.
  static Result<std::unique_ptr<Log>> Begin(const LogDirectory& directory, std::uint64_t next_lsn,
                                            const LogOptions& options);

  // Writes a record and returns its number. It outlives the process, but not a loss of power before
  // Sync(). On an error the record does not exist; the next call may succeed, unless is_broken().
  Result<std::uint64_t> Append(std::uint32_t type, std::span<const iovec> payload);
  // The same for whole records that begin with the next number, as another log has them; returns
  // the number after the last. REQUIRES: `next_lsn` is that number.
  Status AppendWhole(std::span<const std::byte> records, std::uint64_t next_lsn);
  // Ends the segment; returns the number of the next record.
  Result<std::uint64_t> Rotate();
  // Blocks until all records appended before the call are on the disk; returns the number below
  // which all are. An error breaks the log for good.
  Result<std::uint64_t> Sync();

  // How far the last segment is written.
  struct Tail {
    std::uint64_t segment = 0;   // the number in its name
    std::uint64_t bytes = 0;     // of it
    std::uint64_t next_lsn = 0;  // of the record to come
  };
  Tail tail() const;
  std::uint64_t next_lsn() const;
  std::uint64_t bytes() const;  // appended since Begin()
  // No further record is taken.
  bool is_broken() const;

 private:
  Log(const LogDirectory& directory, const LogOptions& options, std::uint64_t next_lsn)
      : directory_(directory), options_(options), next_lsn_(next_lsn) {}
  Status BeginSegment();  // REQUIRES: mutex_ held

  const LogDirectory& directory_;
  const LogOptions options_;
  mutable std::mutex mutex_;  // guards what follows
  std::uint64_t next_lsn_;
  std::uint64_t segment_ = 0;  // the first record of the last segment
  std::uint64_t bytes_ = 0;
  Status broken_;
  std::shared_ptr<RecordWriter> writer_;
  std::vector<std::shared_ptr<RecordWriter>> ended_;  // segments that were not synced since
};

// Writes a snapshot: the state after all records below `lsn`. Not thread-safe.
class SnapshotWriter {
 public:
  static Result<std::unique_ptr<SnapshotWriter>> Begin(const LogDirectory& directory,
                                                       std::uint64_t owner, std::uint64_t lsn);
  ~SnapshotWriter();  // removes what was not committed

  Status Append(std::uint32_t type, std::span<const iovec> payload);
  // Ends the snapshot with a record of this type and gives it its name; then what it replaces is
  // removed. `sync`: also for a loss of power.
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
