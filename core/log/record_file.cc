#include "log/record_file.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <system_error>
#include <utility>

#include "log/crc32c.h"

namespace sparsefleet {
namespace {

constexpr char kMagic[9] = "SPFLOG01";
constexpr std::array<std::byte, 8> kZeros{};
// Written at once by FillUp(): enough, and aligned, for the system to use large pages, which make
// later writes to them cheaper; short enough not to delay other threads.
constexpr std::size_t kFillBytes = 256 << 10;
#if defined(IOV_MAX)
constexpr std::size_t kMaxPieces = IOV_MAX;
#else
constexpr std::size_t kMaxPieces = 1024;
#endif

template <typename T>
void Put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(value));
}

template <typename T>
T Get(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

std::size_t Padding(std::uint64_t bytes) { return static_cast<std::size_t>((8 - bytes % 8) % 8); }

// Covers the payload, then the header, so that the payload can be summed before the record has a
// number.
std::uint32_t RecordCrc(std::uint32_t payload, std::span<const std::byte> head) {
  return Crc32c(payload, head.subspan(4, kRecordHeadBytes - 4));
}

}  // namespace

Payload::Payload(std::span<const iovec> parts) : pieces(parts) {
  for (const iovec& piece : parts) {
    bytes += piece.iov_len;
    crc = Crc32c(crc, {static_cast<const std::byte*>(piece.iov_base), piece.iov_len});
  }
}

Status FileError(const std::string& what, const std::string& path, int error) {
  const bool is_full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return {is_full ? Code::kDiskFull : Code::kIo,
          what + " " + path + ": " + std::generic_category().message(error)};
}

Result<FileHead> RecordReader::Head() {
  if (file_.size() < kFileHeadBytes) {
    return Status(Code::kCorrupt, "the file has " + std::to_string(file_.size()) +
                                      " bytes, but its header alone has " +
                                      std::to_string(kFileHeadBytes));
  }
  const std::byte* head = file_.data();
  if (std::memcmp(head, kMagic, 8) != 0) {
    return Status(Code::kCorrupt,
                  "the file does not begin with SPFLOG01: not a log file, or one "
                  "of another version");
  }
  const auto kind = Get<std::uint32_t>(head + 24);
  if (Get<std::uint32_t>(head + 28) != Crc32c(0, file_.first(28)) ||
      kind > static_cast<std::uint32_t>(FileKind::kSnapshot)) {
    return Status(Code::kCorrupt, "the file header is damaged");
  }
  at_ = kFileHeadBytes;
  next_lsn_ = Get<std::uint64_t>(head + 8);
  return FileHead{next_lsn_, Get<std::uint64_t>(head + 16), static_cast<FileKind>(kind)};
}

std::optional<Record> RecordReader::Next() {
  if (is_torn_ || at_ == file_.size()) return std::nullopt;
  is_torn_ = true;  // until proven complete
  const auto rest = file_.subspan(at_);
  if (rest.size() < kRecordHeadBytes) return std::nullopt;
  const std::uint64_t bytes = Get<std::uint32_t>(rest.data() + 4);
  const std::uint64_t whole = kRecordHeadBytes + bytes + Padding(bytes);
  if (whole > rest.size()) return std::nullopt;
  const auto payload = rest.subspan(kRecordHeadBytes, static_cast<std::size_t>(bytes));
  const std::uint64_t lsn = Get<std::uint64_t>(rest.data() + 8);
  if (lsn != next_lsn_ || Get<std::uint32_t>(rest.data() + 20) != 0) return std::nullopt;
  if (Get<std::uint32_t>(rest.data()) != RecordCrc(Crc32c(0, payload), rest)) return std::nullopt;
  is_torn_ = false;
  at_ += static_cast<std::size_t>(whole);
  ++next_lsn_;
  return Record{lsn, Get<std::uint32_t>(rest.data() + 16), payload};
}

Result<MappedFile> MappedFile::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError("cannot open", path, errno);
  struct stat found{};
  if (::fstat(fd, &found) != 0) {
    const int error = errno;
    ::close(fd);
    return FileError("cannot read", path, error);
  }
  const auto size = static_cast<std::size_t>(found.st_size);
  if (size == 0) {
    ::close(fd);
    return MappedFile(nullptr, 0);
  }
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);
  if (memory == MAP_FAILED) return FileError("cannot read", path, error);
  ::madvise(memory, size, MADV_SEQUENTIAL);
  return MappedFile(static_cast<const std::byte*>(memory), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : bytes_(std::exchange(other.bytes_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile::~MappedFile() {
  if (bytes_ != nullptr) ::munmap(const_cast<std::byte*>(bytes_), size_);
}

Result<std::unique_ptr<RecordWriter>> RecordWriter::Create(const std::string& path,
                                                           const FileHead& head, FileCalls& calls,
                                                           bool reuses) {
  const int how = reuses ? O_RDWR | O_CLOEXEC : O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  const int fd = calls.Open(path.c_str(), how, 0600);
  if (fd < 0) return FileError("cannot create", path, errno);
  std::unique_ptr<RecordWriter> writer(new RecordWriter(path, fd, calls));
  std::array<std::byte, kFileHeadBytes> bytes{};
  std::memcpy(bytes.data(), kMagic, 8);
  Put(bytes.data() + 8, head.first_lsn);
  Put(bytes.data() + 16, head.owner);
  Put(bytes.data() + 24, static_cast<std::uint32_t>(head.kind));
  Put(bytes.data() + 28, Crc32c(0, std::span(bytes).first(28)));
  iovec piece{bytes.data(), bytes.size()};
  if (Status s = writer->WriteAll({&piece, 1}); !s.ok()) return s;
  writer->bytes_ = bytes.size();
  return writer;
}

RecordWriter::~RecordWriter() { ::close(fd_); }

Status RecordWriter::WriteAll(std::span<iovec> pieces) {
  while (!pieces.empty()) {
    const auto count = static_cast<int>(std::min(pieces.size(), kMaxPieces));
    const ssize_t written = calls_.Writev(fd_, pieces.data(), count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError("cannot write", path_, errno);
    auto bytes = static_cast<std::size_t>(written);
    while (!pieces.empty() && bytes >= pieces.front().iov_len) {
      bytes -= pieces.front().iov_len;
      pieces = pieces.subspan(1);
    }
    if (pieces.empty()) break;
    pieces.front().iov_base = static_cast<std::byte*>(pieces.front().iov_base) + bytes;
    pieces.front().iov_len -= bytes;
  }
  return Status::Ok();
}

Status RecordWriter::WriteOrUndo(std::uint64_t bytes) {
  if (is_broken_) {
    return {Code::kIo, path_ + ": an earlier write failed and could not be undone"};
  }
  if (memory_ != nullptr && memory_->Write(bytes_, pieces_)) {
    bytes_ += bytes;
    is_behind_ = true;
    return Status::Ok();
  }
  if (is_behind_ && ::lseek(fd_, static_cast<off_t>(bytes_), SEEK_SET) < 0) {
    return FileError("cannot write", path_, errno);
  }
  is_behind_ = false;
  if (Status s = WriteAll(pieces_); !s.ok()) {
    memory_.reset();  // it ends with the file now
    is_broken_ = calls_.Truncate(fd_, static_cast<off_t>(bytes_)) != 0 ||
                 ::lseek(fd_, static_cast<off_t>(bytes_), SEEK_SET) < 0;
    return s;
  }
  bytes_ += bytes;
  return Status::Ok();
}

Status RecordWriter::AppendWhole(std::span<const std::byte> records) {
  pieces_.assign(1, {const_cast<std::byte*>(records.data()), records.size()});
  return WriteOrUndo(records.size());
}

Status RecordWriter::Append(std::uint64_t lsn, std::uint32_t type, const Payload& payload) {
  if (payload.bytes > UINT32_MAX) {
    return {Code::kTooLarge, path_ + ": a record of " + std::to_string(payload.bytes) + " bytes"};
  }
  std::array<std::byte, kRecordHeadBytes> head{};
  Put(head.data() + 4, static_cast<std::uint32_t>(payload.bytes));
  Put(head.data() + 8, lsn);
  Put(head.data() + 16, type);
  Put(head.data(), RecordCrc(payload.crc, head));
  pieces_.clear();
  pieces_.push_back({head.data(), head.size()});
  for (const iovec& piece : payload.pieces) {
    if (piece.iov_len > 0) pieces_.push_back(piece);
  }
  const std::size_t padding = Padding(payload.bytes);
  if (padding > 0) pieces_.push_back({const_cast<std::byte*>(kZeros.data()), padding});
  return WriteOrUndo(kRecordHeadBytes + payload.bytes + padding);
}

bool RecordWriter::FillUp(std::uint64_t size, const std::function<bool()>& stops) {
#if defined(__linux__)
  // Makes the writes cheaper, and their blocks adjacent.
  if (size > bytes_) (void)::fallocate(fd_, 0, 0, static_cast<off_t>(size));
#endif
  const std::vector<std::byte> zeros(kFillBytes);
  for (std::uint64_t at = bytes_; at < size;) {
    if (stops()) return false;
    const std::uint64_t end = std::min(size, (at / kFillBytes + 1) * kFillBytes);
    iovec piece{const_cast<std::byte*>(zeros.data()), static_cast<std::size_t>(end - at)};
    if (!WriteAll({&piece, 1}).ok()) return false;
    at = end;
  }
  return true;
}

Status RecordWriter::End() {
  memory_.reset();  // it ends with the file now
  if (calls_.Truncate(fd_, static_cast<off_t>(bytes_)) == 0) return Status::Ok();
  return FileError("cannot truncate", path_, errno);
}

Status RecordWriter::Sync() const {
  if (calls_.Sync(fd_) != 0) return FileError("cannot sync", path_, errno);
  return Status::Ok();
}

}  // namespace sparsefleet
