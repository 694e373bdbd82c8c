// A directory of segments and snapshots, owned by one process at a time. Format:
// docs/log_format.md.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "log/file_calls.h"
#include "log/record_file.h"
#include "status/status.h"

namespace sparsefleet {

// The outcome of a recovery.
struct Recovered {
  std::uint64_t owner = 0;     // of the files; 0: there were none
  std::uint64_t next_lsn = 1;  // of the next record to be written
  std::uint64_t snapshot_lsn = 0;
  std::uint64_t snapshot_bytes = 0;
  std::uint64_t records = 0;  // of segments
  std::uint64_t bytes = 0;
  std::uint64_t torn_bytes = 0;  // cut off the end of the last segment
};

// Thread-safe.
class LogDirectory {
 public:
  // Creates the directory if necessary, and locks it: kIo, naming the owning process, if that does
  // not release it within `wait_s`. Removes unfinished snapshots. With `take_over` the owner is
  // killed, even if it is suspended and would resume later.
  static Result<std::unique_ptr<LogDirectory>> Open(const std::string& path, double wait_s,
                                                    FileCalls& calls = FileCalls::System(),
                                                    bool take_over = false);
  ~LogDirectory();

  // Passes the records of the newest snapshot, then those of the segments after it, to `visit`; an
  // error of `visit` ends the recovery. A snapshot is valid if its last record has the type
  // `end_of_snapshot`, which is not passed on. Cuts off a torn end. kCorrupt if records are
  // missing.
  // `after_snapshot` is called after the last record of the snapshot was passed on; their payloads
  // stay valid until then.
  using Visit = std::function<Status(bool is_snapshot, const Record& record)>;
  Result<Recovered> Recover(std::uint32_t end_of_snapshot, const Visit& visit,
                            const std::function<Status()>& after_snapshot = {}) const;

  std::string SegmentPath(std::uint64_t lsn) const;
  std::string SnapshotPath(std::uint64_t lsn) const;
  const std::string& path() const { return path_; }
  FileCalls& calls() const { return calls_; }

  struct Listing {
    std::vector<std::uint64_t> segments;   // ascending
    std::vector<std::uint64_t> snapshots;  // ascending
    std::vector<std::string> unfinished;   // names
    std::vector<std::string> spares;       // names
  };
  Result<Listing> List() const;

  // The number of the process that wrote this directory, in order of take-over; 0: unknown. Only
  // directories that have a replica, or are one, keep it.
  Result<std::uint64_t> ReadEpoch() const;
  Status WriteEpoch(std::uint64_t epoch) const;  // lasts when it returns
  // Removes all segments, snapshots and the epoch.
  Status RemoveAll() const;

  // Makes renames and new files durable.
  Status SyncNames() const;
  // Removes snapshots and segments that a snapshot at `lsn` makes obsolete. With `keeps_spares`
  // segments are kept for TakeSpare().
  Status RemoveBefore(std::uint64_t lsn, bool keeps_spares = false) const;
  // Gives a spare segment, if there is one, the name `path`. Its records have lower numbers than
  // any to come, so they cannot be mistaken for new ones.
  bool TakeSpare(const std::string& path) const;
  // Removes the spare segments, for their space. True if there was one.
  bool RemoveSpares() const;
  // Writes a spare segment of `bytes` zeros after a header, unless there is a spare already or
  // little space on the disk. Calls `stops` now and then, and abandons the spare if that returns
  // true. True if there is a spare now.
  bool PrepareSpare(std::uint64_t owner, std::uint64_t bytes,
                    const std::function<bool()>& stops) const;

 private:
  LogDirectory(std::string path, int lock, FileCalls& calls)
      : path_(std::move(path)), lock_(lock), calls_(calls) {}
  Status RemoveFile(const std::string& path) const;
  Status ReadSnapshot(std::uint64_t lsn, std::uint32_t end, const Visit& visit,
                      const std::function<Status()>& after, Recovered& found) const;
  // `next`: the first record of the segment after it, if there is one.
  Status ReadSegment(std::uint64_t lsn, std::optional<std::uint64_t> next, const Visit& visit,
                     Recovered& found) const;

  const std::string path_;
  const int lock_;
  FileCalls& calls_;
};

}  // namespace sparsefleet
