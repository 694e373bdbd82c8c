#include "log/log.h"

#include <cerrno>
#include <utility>

namespace sparsefleet {

Result<std::unique_ptr<Log>> Log::Begin(const LogDirectory& directory, std::uint64_t next_lsn,
                                        const LogOptions& options) {
  std::unique_ptr<Log> log(new Log(directory, options, next_lsn));
  std::lock_guard lock(log->mutex_);
  if (Status s = log->BeginSegment(); !s.ok()) return s;
  if (options.prepares_segments) {
    log->preparer_ =
        std::make_unique<SparePreparer>(directory, options.owner, options.segment_bytes);
  }
  return log;
}

Status Log::BeginSegment() {
  const std::uint64_t first = written_lsn();
  const std::string path = directory_.SegmentPath(first);
  // An existing segment with this number is empty: an earlier start got no further.
  directory_.calls().Remove(path.c_str());
  if (writer_ != nullptr) {
    if (Status s = writer_->End(); !s.ok()) return s;
  }
  const bool reuses = directory_.TakeSpare(path);
  auto writer = RecordWriter::Create(path, {first, options_.owner, FileKind::kSegment},
                                     directory_.calls(), reuses);
  if (!writer.ok()) {
    directory_.calls().Remove(path.c_str());
    return writer.status();
  }
  if (reuses && !options_.is_synced) {
    writer.value()->WriteTo(memories_.Take(writer.value()->fd()));
  }
  if (writer_ != nullptr && options_.is_synced) ended_.push_back(std::move(writer_));
  writer_ = std::move(writer).value();
  segment_ = first;
  has_requested_spare_ = false;
  return Status::Ok();
}

Result<std::uint64_t> Log::Append(std::uint32_t type, std::span<const iovec> pieces) {
  const Payload payload(pieces);  // checksummed outside the lock, as that takes a while
  std::lock_guard lock(mutex_);
  if (!broken_.ok()) return broken_;
  if (held_.empty()) {
    const Status written = Write(next_lsn_, type, payload);
    if (written.ok()) return next_lsn_++;
    if (!broken_.ok() || written.code() != Code::kDiskFull) return written;
  }
  Held held{type, {}};
  held.payload.reserve(static_cast<std::size_t>(payload.bytes));
  for (const iovec& piece : pieces) {
    const auto* bytes = static_cast<const std::byte*>(piece.iov_base);
    held.payload.insert(held.payload.end(), bytes, bytes + piece.iov_len);
  }
  held_.push_back(std::move(held));
  num_held_ = held_.size();
  return next_lsn_++;
}

Status Log::Write(std::uint64_t lsn, std::uint32_t type, const Payload& payload) {
  if (writer_->bytes() >= options_.segment_bytes) {
    if (Status s = BeginSegment(); !s.ok()) return s;
  }
  Status written = writer_->Append(lsn, type, payload);
  if (written.code() == Code::kDiskFull && !writer_->is_broken() && directory_.RemoveSpares()) {
    memories_.ReleaseRemoved();
    written = writer_->Append(lsn, type, payload);
  }
  if (written.ok()) bytes_ += kRecordHeadBytes + payload.bytes;
  // Not from the start: a server that logs little needs no second segment.
  if (preparer_ != nullptr && writer_->bytes() >= options_.segment_bytes / 4 &&
      !std::exchange(has_requested_spare_, true)) {
    preparer_->Request();
  }
  if (writer_->is_broken()) broken_ = written.WithPrefix("the log is broken: ");
  return written;
}

Status Log::WriteHeld() {
  std::lock_guard lock(mutex_);
  if (!broken_.ok()) return broken_;
  while (!held_.empty()) {
    Held& first = held_.front();
    const iovec piece{first.payload.data(), first.payload.size()};
    if (Status s = Write(written_lsn(), first.type, Payload({&piece, 1})); !s.ok()) return s;
    held_.pop_front();
    num_held_ = held_.size();
  }
  return Status::Ok();
}

Status Log::AppendWhole(std::span<const std::byte> records, std::uint64_t next_lsn) {
  std::lock_guard lock(mutex_);
  if (!broken_.ok()) return broken_;
  if (writer_->bytes() >= options_.segment_bytes) {
    if (Status s = BeginSegment(); !s.ok()) return s;
  }
  const Status written = writer_->AppendWhole(records);
  if (!written.ok()) {
    if (writer_->is_broken()) broken_ = written.WithPrefix("the log is broken: ");
    return written;
  }
  bytes_ += records.size();
  next_lsn_ = next_lsn;
  return Status::Ok();
}

Result<std::uint64_t> Log::Rotate() {
  std::lock_guard lock(mutex_);
  if (!broken_.ok()) return broken_;
  if (!held_.empty()) {
    return Status(Code::kDiskFull, std::to_string(held_.size()) + " records are not written yet");
  }
  if (writer_->bytes() > kFileHeadBytes) {
    if (Status s = BeginSegment(); !s.ok()) return s;
  }
  return next_lsn_;
}

Result<std::uint64_t> Log::Sync() {
  std::vector<std::shared_ptr<RecordWriter>> writers;
  std::uint64_t end = 0;
  bool has_new_segment = false;
  {
    std::lock_guard lock(mutex_);
    if (!broken_.ok()) return broken_;
    has_new_segment = !ended_.empty();
    writers = std::exchange(ended_, {});
    writers.push_back(writer_);
    end = written_lsn();
  }
  Status status;
  for (const auto& writer : writers) {
    if (status.ok()) status = writer->Sync();
  }
  if (status.ok() && has_new_segment) status = directory_.SyncNames();
  if (status.ok()) return end;
  std::lock_guard lock(mutex_);
  broken_ = status.WithPrefix("the log is broken: ");
  return broken_;
}

Log::Tail Log::tail() const {
  std::lock_guard lock(mutex_);
  return {segment_, writer_->bytes(), written_lsn()};
}

std::uint64_t Log::next_lsn() const {
  std::lock_guard lock(mutex_);
  return next_lsn_;
}

std::uint64_t Log::bytes() const {
  std::lock_guard lock(mutex_);
  return bytes_;
}

bool Log::is_broken() const {
  std::lock_guard lock(mutex_);
  return !broken_.ok();
}

Result<std::unique_ptr<SnapshotWriter>> SnapshotWriter::Begin(const LogDirectory& directory,
                                                              std::uint64_t owner,
                                                              std::uint64_t lsn) {
  const std::string path = directory.SnapshotPath(lsn) + ".tmp";
  directory.calls().Remove(path.c_str());
  std::unique_ptr<SnapshotWriter> snapshot(new SnapshotWriter(directory, lsn, path));
  auto writer = RecordWriter::Create(path, {lsn, owner, FileKind::kSnapshot}, directory.calls());
  if (!writer.ok()) return writer.status();
  snapshot->writer_ = std::move(writer).value();
  return snapshot;
}

SnapshotWriter::~SnapshotWriter() {
  if (!is_committed_) directory_.calls().Remove(path_.c_str());
}

Status SnapshotWriter::Append(std::uint32_t type, std::span<const iovec> payload) {
  Status s = writer_->Append(next_, type, Payload(payload));
  if (s.ok()) ++next_;
  return s;
}

Status SnapshotWriter::Commit(std::uint32_t end_type, bool sync) {
  if (Status s = Append(end_type, {}); !s.ok()) return s;
  if (sync) {
    if (Status s = writer_->Sync(); !s.ok()) return s;
  }
  const std::string to = directory_.SnapshotPath(lsn_);
  if (directory_.calls().Rename(path_.c_str(), to.c_str()) != 0) {
    return FileError("cannot rename", path_, errno);
  }
  is_committed_ = true;
  if (sync) {
    if (Status s = directory_.SyncNames(); !s.ok()) return s;
  }
  return directory_.RemoveBefore(lsn_, true);
}

}  // namespace sparsefleet
