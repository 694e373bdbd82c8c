#include "log/log_cursor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

namespace sparsefleet {
namespace {

struct RecordHead {
  std::uint64_t bytes = 0;  // of the whole record
  std::uint64_t lsn = 0;
};

// REQUIRES: kRecordHeadBytes are there.
RecordHead HeadAt(const std::byte* at) {
  std::uint32_t payload = 0;
  RecordHead head;
  std::memcpy(&payload, at + 4, sizeof(payload));
  std::memcpy(&head.lsn, at + 8, sizeof(head.lsn));
  head.bytes = kRecordHeadBytes + (std::uint64_t{payload} + 7) / 8 * 8;
  return head;
}

}  // namespace

void LogCursor::Close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Status LogCursor::ReadAt(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t bytes = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) {
      return FileError("cannot read", directory_.SegmentPath(segment_), bytes < 0 ? errno : EIO);
    }
    offset += static_cast<std::uint64_t>(bytes);
    out = out.subspan(static_cast<std::size_t>(bytes));
  }
  return Status::Ok();
}

Result<std::uint64_t> LogCursor::EndOfSegment(const Log::Tail& tail) const {
  if (segment_ == tail.segment) return tail.bytes;
  struct stat found{};
  if (::fstat(fd_, &found) != 0) {
    return FileError("cannot read", directory_.SegmentPath(segment_), errno);
  }
  return static_cast<std::uint64_t>(found.st_size);
}

Status LogCursor::Seek(std::uint64_t lsn, const Log::Tail& tail) {
  Close();
  auto listing = directory_.List();
  if (!listing.ok()) return listing.status();
  const auto& segments = listing.value().segments;
  const auto after = std::ranges::upper_bound(segments, lsn);
  if (after == segments.begin()) {
    return {Code::kNotFound, "record " + std::to_string(lsn) + " is no longer in the log"};
  }
  segment_ = *(after - 1);
  const std::string path = directory_.SegmentPath(segment_);
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) {
    return errno == ENOENT ? Status(Code::kNotFound, path + " is no longer there")
                           : FileError("cannot open", path, errno);
  }
  auto end = EndOfSegment(tail);
  if (!end.ok()) return end.status();
  offset_ = kFileHeadBytes;
  lsn_ = segment_;
  std::byte head[kRecordHeadBytes];
  while (lsn_ < lsn) {
    if (offset_ + kRecordHeadBytes > end.value()) {
      return {Code::kNotFound, path + " ends before record " + std::to_string(lsn)};
    }
    if (Status s = ReadAt(offset_, head); !s.ok()) return s;
    offset_ += HeadAt(head).bytes;
    ++lsn_;
  }
  return Status::Ok();
}

Result<LogCursor::Batch> LogCursor::Read(std::uint64_t lsn, const Log::Tail& tail,
                                         std::size_t max_bytes) {
  if (lsn >= tail.next_lsn) return Batch{lsn, lsn, {}};
  if (fd_ < 0 || lsn_ != lsn) {
    if (Status s = Seek(lsn, tail); !s.ok()) return s;
  }
  auto end = EndOfSegment(tail);
  if (end.ok() && offset_ == end.value()) {  // the next segment begins with this record
    if (Status s = Seek(lsn, tail); !s.ok()) return s;
    end = EndOfSegment(tail);
  }
  if (!end.ok()) return end.status();
  const std::uint64_t left = end.value() - std::min(offset_, end.value());
  const auto fail = [&] {
    Close();
    return Status(Code::kCorrupt, directory_.SegmentPath(segment_) + ": no record " +
                                      std::to_string(lsn_) + " at byte " + std::to_string(offset_));
  };
  if (left < kRecordHeadBytes) return fail();
  buffer_.resize(static_cast<std::size_t>(std::min<std::uint64_t>(left, max_bytes)));
  if (buffer_.size() < kRecordHeadBytes) buffer_.resize(kRecordHeadBytes);
  if (Status s = ReadAt(offset_, buffer_); !s.ok()) return s;
  if (const RecordHead first = HeadAt(buffer_.data()); first.bytes > buffer_.size()) {
    if (first.bytes > left) return fail();
    const std::size_t had = buffer_.size();
    buffer_.resize(static_cast<std::size_t>(first.bytes));
    if (Status s = ReadAt(offset_ + had, std::span(buffer_).subspan(had)); !s.ok()) return s;
  }
  std::size_t used = 0;
  std::uint64_t next = lsn;
  while (buffer_.size() - used >= kRecordHeadBytes) {
    const RecordHead head = HeadAt(buffer_.data() + used);
    if (head.lsn != next) return fail();
    if (head.bytes > buffer_.size() - used) break;
    used += static_cast<std::size_t>(head.bytes);
    ++next;
  }
  offset_ += used;
  lsn_ = next;
  return Batch{lsn, next, std::span<const std::byte>(buffer_).first(used)};
}

}  // namespace sparsefleet
