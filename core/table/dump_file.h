// One file of a table dump: written block by block, read block by block.
// Format: docs/table_dump.md. Not thread-safe.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "status/status.h"
#include "table/sparse_table.h"

namespace sparsefleet {

struct DumpHeader {
  bool dense = false;
  std::uint8_t optimizer = 0;
  std::uint8_t counters = 0;  // kDumpCount and so on
  std::uint32_t dim = 1;
  std::uint32_t state_dim = 0;
  std::uint32_t index = 0;
  std::uint32_t num_servers = 1;
  std::uint64_t size = 0;  // dense: of the whole table, and what of it is here
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::string name;

  std::uint64_t row_bytes() const;
};

inline constexpr std::uint8_t kDumpCount = 1;
inline constexpr std::uint8_t kDumpStep = 2;
inline constexpr std::uint8_t kDumpSeconds = 4;

struct CloseFile {
  void operator()(std::FILE* file) const { (void)std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

// Writes under a temporary name beside `path`; without Publish() nothing stays.
class DumpWriter {
 public:
  static Result<DumpWriter> Create(std::string path, DumpHeader header);
  DumpWriter(DumpWriter&& other) noexcept;
  DumpWriter& operator=(DumpWriter&&) = delete;
  ~DumpWriter();

  std::uint64_t rows_per_block() const;  // what Write() should be handed at a time

  // Dense blocks have no keys: their number of elements is that of their values.
  Status Write(const RowBatch& block);
  Status Finish();   // end record, sync
  Status Publish();  // takes the final name; REQUIRES: Finish() was ok

 private:
  DumpWriter(std::string path, std::string temporary, File file, DumpHeader header);
  Status WriteBytes(const void* bytes, std::size_t size);
  Status IoError(const std::string& what) const;

  std::string path_;
  std::string temporary_;  // empty once published
  File file_;
  DumpHeader header_;
  std::uint64_t total_ = 0;
};

class DumpReader {
 public:
  // kNotFound, kIo, or kCorrupt naming the file.
  static Result<DumpReader> Open(std::string path);

  const std::string& path() const { return path_; }
  const DumpHeader& header() const { return header_; }

  // Replaces `out` by the next block. False at the end, which has then been checked too.
  Result<bool> Next(RowBatch& out);

 private:
  DumpReader(std::string path, File file) : path_(std::move(path)), file_(std::move(file)) {}
  Status ReadHeader();
  Status ReadBytes(void* to, std::size_t size, std::uint32_t& crc);
  Status Corrupt(const std::string& what) const;

  std::string path_;
  File file_;
  DumpHeader header_;
  std::uint64_t total_ = 0;
};

// So that a rename in it survives a power cut.
Status SyncDirectory(const std::string& directory);

}  // namespace sparsefleet
