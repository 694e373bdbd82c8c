// Reads the records of a log while it is being written, to send them elsewhere.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "log/log.h"
#include "log/log_directory.h"
#include "status/status.h"

namespace sparsefleet {

// Not thread-safe.
class LogCursor {
 public:
  explicit LogCursor(const LogDirectory& directory) : directory_(directory) {}
  ~LogCursor() { Close(); }
  LogCursor(const LogCursor&) = delete;
  LogCursor& operator=(const LogCursor&) = delete;

  struct Batch {
    std::uint64_t first_lsn = 0;
    std::uint64_t next_lsn = 0;          // after the last
    std::span<const std::byte> records;  // whole ones; valid until the next call
  };
  // Records from number `lsn` on, up to `max_bytes` but at least one; none at the end of the log.
  // kNotFound if the log no longer has them because a snapshot has replaced them. REQUIRES: `tail`
  // is the log's, asked for after the last record that is wanted.
  Result<Batch> Read(std::uint64_t lsn, const Log::Tail& tail, std::size_t max_bytes);

 private:
  Status Seek(std::uint64_t lsn, const Log::Tail& tail);
  Result<std::uint64_t> EndOfSegment(const Log::Tail& tail) const;
  Status ReadAt(std::uint64_t offset, std::span<std::byte> out) const;
  void Close();

  const LogDirectory& directory_;
  int fd_ = -1;
  std::uint64_t segment_ = 0;
  std::uint64_t offset_ = 0;
  std::uint64_t lsn_ = 0;  // of the record at offset_
  std::vector<std::byte> buffer_;
};

}  // namespace sparsefleet
