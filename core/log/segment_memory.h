// Segments as memory: records are copied to a reused segment without a system call.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace sparsefleet {

// The bytes that a segment had when it was reused, mapped. Copies go around the caches, which a
// log would only fill with bytes that nobody reads. Not thread-safe.
class SegmentMemory {
 public:
  ~SegmentMemory();
  SegmentMemory(const SegmentMemory&) = delete;
  SegmentMemory& operator=(const SegmentMemory&) = delete;

  // Copies the pieces to byte `at` and those after it. False, with nothing changed, if the segment
  // was shorter than that when it was taken.
  bool Write(std::uint64_t at, std::span<const iovec> pieces);

 private:
  friend class SegmentMemories;
  SegmentMemory(int fd, std::byte* bytes, std::size_t size) : fd_(fd), bytes_(bytes), size_(size) {}
  // Makes the pages before `end` writable, several at once: one by one would take longer than the
  // copies save.
  bool Touch(std::uint64_t end);

  const int fd_;
  std::byte* const bytes_;
  const std::size_t size_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  std::uint64_t usable_ = 0;   // of size_; the file may be shorter than it was
  std::uint64_t touched_ = 0;  // of usable_
};

// The memory of a log's segments, kept while they are spares. Not thread-safe.
class SegmentMemories {
 public:
  // The memory of an open file, mapped now or earlier. Null if that is impossible, or if the file
  // system might need more space to overwrite the file: then a full disk would end the process.
  // Valid until the file is truncated.
  std::shared_ptr<SegmentMemory> Take(int fd);
  // Unmaps removed files, which use space until then.
  void ReleaseRemoved();

 private:
  std::vector<std::shared_ptr<SegmentMemory>> all_;
};

}  // namespace sparsefleet
