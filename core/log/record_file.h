// Files of checksummed records: the segments of a log, and snapshots. Format: docs/log_format.md.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "log/file_calls.h"
#include "log/segment_memory.h"
#include "status/status.h"

namespace sparsefleet {

// Format: do not change.
inline constexpr std::size_t kFileHeadBytes = 32;
inline constexpr std::size_t kRecordHeadBytes = 24;
enum class FileKind : std::uint32_t { kSegment = 0, kSnapshot = 1 };

struct FileHead {
  std::uint64_t first_lsn = 0;
  std::uint64_t owner = 0;
  FileKind kind = FileKind::kSegment;
};

struct Record {
  std::uint64_t lsn = 0;
  std::uint32_t type = 0;
  std::span<const std::byte> payload;  // aligned to 8
};

// The content of a record to write: consecutive pieces and their checksum.
struct Payload {
  explicit Payload(std::span<const iovec> parts);
  std::span<const iovec> pieces;
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;
};

// Reads records out of a file's bytes. Not thread-safe.
class RecordReader {
 public:
  // REQUIRES: `file` is aligned to 8 and outlives the reader.
  explicit RecordReader(std::span<const std::byte> file) : file_(file) {}
  // The same for records outside a file, the first of which has this number.
  RecordReader(std::span<const std::byte> records, std::uint64_t first_lsn)
      : file_(records), next_lsn_(first_lsn) {}

  // kCorrupt unless the file starts with a complete header.
  Result<FileHead> Head();
  // The next record; nothing at the end of the file or at a torn record, see is_torn().
  // REQUIRES: Head() was ok, if there is one.
  std::optional<Record> Next();
  // Whether the bytes at position() are not a record that belongs here.
  bool is_torn() const { return is_torn_; }
  std::size_t position() const { return at_; }  // the end of the last complete record

 private:
  const std::span<const std::byte> file_;
  std::size_t at_ = 0;
  std::uint64_t next_lsn_ = 0;
  bool is_torn_ = false;
};

// A file mapped read-only. Move-only.
class MappedFile {
 public:
  static Result<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {bytes_, size_}; }

 private:
  MappedFile(const std::byte* bytes, std::size_t size) : bytes_(bytes), size_(size) {}
  const std::byte* bytes_;
  std::size_t size_;
};

// Appends records to a new file. Not thread-safe, except Sync().
class RecordWriter {
 public:
  // kIo if the file exists or cannot be created. With `reuses` it must exist, and its bytes are
  // overwritten: that is cheaper than a new file, for which the system must find and clear pages.
  static Result<std::unique_ptr<RecordWriter>> Create(const std::string& path, const FileHead& head,
                                                      FileCalls& calls, bool reuses = false);
  ~RecordWriter();

  // Writes a record. After an error nothing is added: a partial write is cut off again. If even
  // that fails, the writer is broken.
  Status Append(std::uint64_t lsn, std::uint32_t type, const Payload& payload);
  // The same for complete records from another file.
  Status AppendWhole(std::span<const std::byte> records);
  // Fills the file with zeros up to `size` bytes, so that its pages are in memory when it is
  // reused. False after an error, or once `stops` returns true. REQUIRES: nothing is appended
  // afterwards.
  bool FillUp(std::uint64_t size, const std::function<bool()>& stops);
  // Copies records to the memory of the reused file, for as long as it has room.
  // REQUIRES: `memory` is null or this file's, and taken after Create().
  void WriteTo(std::shared_ptr<SegmentMemory> memory) { memory_ = std::move(memory); }
  // Cuts off the old bytes of a reused file after the last record.
  Status End();
  int fd() const { return fd_; }
  bool is_broken() const { return is_broken_; }
  // Blocks until everything appended before the call is on disk. Thread-safe.
  Status Sync() const;
  std::uint64_t bytes() const { return bytes_; }

 private:
  RecordWriter(std::string path, int fd, FileCalls& calls)
      : path_(std::move(path)), fd_(fd), calls_(calls) {}
  Status WriteAll(std::span<iovec> pieces);
  // Writes pieces_, or nothing.
  Status WriteOrUndo(std::uint64_t bytes);

  const std::string path_;
  const int fd_;
  FileCalls& calls_;
  std::uint64_t bytes_ = 0;
  std::shared_ptr<SegmentMemory> memory_;  // null: records are written with system calls
  bool is_behind_ = false;                 // the file's position, because of writes to memory_
  bool is_broken_ = false;
  std::vector<iovec> pieces_;
};

// "cannot write /x/y: No space left on device"; kDiskFull for this and similar errors, otherwise
// kIo.
Status FileError(const std::string& what, const std::string& path, int error);

}  // namespace sparsefleet
