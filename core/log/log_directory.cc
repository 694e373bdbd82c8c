#include "log/log_directory.h"

#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

namespace sparsefleet {
namespace {

constexpr auto kLockRetry = std::chrono::milliseconds(20);
constexpr std::size_t kMostSpares = 16;
// A spare is prepared while there is room for this many.
constexpr std::uint64_t kSpaceForSpares = 16;

std::string Numbered(const char* prefix, std::uint64_t lsn, const char* suffix) {
  char name[64];
  std::snprintf(name, sizeof(name), "%s-%016llx.%s", prefix, static_cast<unsigned long long>(lsn),
                suffix);
  return name;
}

std::optional<std::uint64_t> LsnIn(const std::string& name, std::string_view prefix,
                                   std::string_view suffix) {
  if (name.size() != prefix.size() + 16 + suffix.size() || !name.starts_with(prefix) ||
      !name.ends_with(suffix)) {
    return std::nullopt;
  }
  std::uint64_t number = 0;
  const char* first = name.data() + prefix.size();
  const auto [end, error] = std::from_chars(first, first + 16, number, 16);
  if (error != std::errc() || end != first + 16) return std::nullopt;
  return number;
}

bool HasZeroHead(std::span<const std::byte> file) {
  return file.size() >= kFileHeadBytes &&
         std::ranges::all_of(file.first(kFileHeadBytes),
                             [](std::byte b) { return b == std::byte{}; });
}

// The process that has locked the file, read from the file; 0 if it has not written its id yet.
pid_t HolderOf(int lock) {
  char text[32] = {};
  const ssize_t bytes = ::pread(lock, text, sizeof(text) - 1, 0);
  pid_t holder = 0;
  if (bytes > 0) std::from_chars(text, text + bytes, holder);
  return holder;
}

// Kills the process that has locked the file. The id in the file may belong to a process that has
// ended, and may have been reused since: the kernel's list of locks must agree.
void KillHolder(int lock) {
  const pid_t holder = HolderOf(lock);
  struct stat found{};
  if (holder <= 0 || holder == ::getpid() || ::fstat(lock, &found) != 0) return;
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    long pid = 0;
    unsigned long inode = 0;
    if (std::sscanf(line.c_str(), "%*d: FLOCK %*s %*s %ld %*x:%*x:%lu", &pid, &inode) != 2)
      continue;
    if (pid == holder && inode == found.st_ino) {
      ::kill(holder, SIGKILL);
      return;
    }
  }
}

Status Corrupt(const std::string& path, const std::string& why) {
  return {Code::kCorrupt, "log file " + path + ": " + why};
}

}  // namespace

Result<std::unique_ptr<LogDirectory>> LogDirectory::Open(const std::string& path, double wait_s,
                                                         FileCalls& calls, bool take_over) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error)
    return Status(Code::kIo, "cannot create log directory " + path + ": " + error.message());
  std::filesystem::permissions(path, std::filesystem::perms::owner_all, error);
  const std::string lock_path = path + "/LOCK";
  const int lock = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) return FileError("cannot open", lock_path, errno);
  std::unique_ptr<LogDirectory> directory(new LogDirectory(path, lock, calls));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait_s);
  if (take_over && ::flock(lock, LOCK_EX | LOCK_NB) != 0) KillHolder(lock);
  while (::flock(lock, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return FileError("cannot lock", lock_path, errno);
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      const pid_t holder = HolderOf(lock);
      return Status(Code::kIo,
                    "log directory " + path + " belongs to " +
                        (holder > 0 ? "process " + std::to_string(holder) : "another process") +
                        ", which still runs or is stopped: end it first (--take-over kills it), or "
                        "use another directory");
    }
    std::this_thread::sleep_for(kLockRetry);
  }
  const std::string pid = std::to_string(::getpid());
  // Not truncated first: on a full disk the block would be lost.
  if (::pwrite(lock, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size()) ||
      ::ftruncate(lock, static_cast<off_t>(pid.size())) != 0) {
    return FileError("cannot write", lock_path, errno);
  }
  auto listing = directory->List();
  if (!listing.ok()) return listing.status();
  // Spares as well: only the process that made them knows that their records are old.
  for (const auto* names : {&listing.value().unfinished, &listing.value().spares}) {
    for (const std::string& name : *names) calls.Remove((path + "/" + name).c_str());
  }
  return directory;
}

LogDirectory::~LogDirectory() { ::close(lock_); }

std::string LogDirectory::SegmentPath(std::uint64_t lsn) const {
  return path_ + "/" + Numbered("log", lsn, "seg");
}

std::string LogDirectory::SnapshotPath(std::uint64_t lsn) const {
  return path_ + "/" + Numbered("snapshot", lsn, "snap");
}

Result<LogDirectory::Listing> LogDirectory::List() const {
  Listing listing;
  std::error_code error;
  for (std::filesystem::directory_iterator it(path_, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (const auto lsn = LsnIn(name, "log-", ".seg")) listing.segments.push_back(*lsn);
    if (const auto lsn = LsnIn(name, "snapshot-", ".snap")) listing.snapshots.push_back(*lsn);
    if (name.ends_with(".tmp")) listing.unfinished.push_back(name);
    if (LsnIn(name, "spare-", ".seg")) listing.spares.push_back(name);
  }
  if (error) {
    return Status(Code::kIo, "cannot list log directory " + path_ + ": " + error.message());
  }
  std::ranges::sort(listing.segments);
  std::ranges::sort(listing.snapshots);
  return listing;
}

Status LogDirectory::ReadSnapshot(std::uint64_t lsn, std::uint32_t end, const Visit& visit,
                                  const std::function<Status()>& after, Recovered& found) const {
  const std::string path = SnapshotPath(lsn);
  auto file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  RecordReader reader(file.value().bytes());
  auto head = reader.Head();
  if (!head.ok()) return Corrupt(path, head.status().message());
  if (head.value().kind != FileKind::kSnapshot || head.value().first_lsn != lsn) {
    return Corrupt(path, "its header belongs to another file");
  }
  found.owner = head.value().owner;
  found.snapshot_lsn = lsn;
  found.snapshot_bytes = file.value().bytes().size();
  Status s;
  bool is_whole = false;
  while (const auto record = reader.Next()) {
    is_whole = record->type == end;
    if (!is_whole) s = visit(true, *record);
    if (is_whole || !s.ok()) break;
  }
  if (after) {
    const Status later = after();
    if (s.ok()) s = later;
  }
  if (!s.ok()) return s.WithPrefix(path + ": ");
  if (is_whole) return s;
  return Corrupt(path, "it is truncated or damaged at byte " + std::to_string(reader.position()) +
                           ", before its last record");
}

Status LogDirectory::ReadSegment(std::uint64_t lsn, std::optional<std::uint64_t> next,
                                 const Visit& visit, Recovered& found) const {
  const bool is_last = !next.has_value();
  const std::string path = SegmentPath(lsn);
  auto file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  const auto bytes = file.value().bytes();
  RecordReader reader(bytes);
  auto head = reader.Head();
  // A reused segment that still has its old header, or a prepared one of which only the size
  // survived a power loss.
  const bool is_stale = is_last && (head.ok() ? head.value().kind == FileKind::kSegment &&
                                                    head.value().first_lsn < lsn
                                              : HasZeroHead(bytes));
  if (!head.ok() || is_stale) {
    // The process ended while it was starting this segment.
    if (!is_stale && (!is_last || bytes.size() >= kFileHeadBytes)) {
      return Corrupt(path, head.status().message());
    }
    found.torn_bytes += bytes.size();
    if (calls_.Remove(path.c_str()) != 0) return FileError("cannot remove", path, errno);
    return Status::Ok();
  }
  if (head.value().kind != FileKind::kSegment || head.value().first_lsn != lsn) {
    return Corrupt(path, "its header belongs to another file");
  }
  if (found.owner != 0 && head.value().owner != found.owner) {
    return Corrupt(path, "it belongs to a different server than the files before it");
  }
  if (lsn > found.next_lsn) {
    return Corrupt(path, "records " + std::to_string(found.next_lsn) + " to " +
                             std::to_string(lsn - 1) +
                             " are missing between it and the previous file");
  }
  found.owner = head.value().owner;
  while (const auto record = reader.Next()) {
    if (record->lsn < found.next_lsn) continue;
    found.next_lsn = record->lsn + 1;
    ++found.records;
    found.bytes += record->payload.size();
    if (Status s = visit(false, *record); !s.ok()) {
      return s.WithPrefix(path + ", record " + std::to_string(record->lsn) + ": ");
    }
  }
  if (!reader.is_torn()) return Status::Ok();
  if (!is_last) {
    // What follows the last record of a reused segment is old.
    if (*next <= found.next_lsn) return Status::Ok();
    return Corrupt(path, "the record at byte " + std::to_string(reader.position()) +
                             " is damaged, but valid records follow it");
  }
  found.torn_bytes += bytes.size() - reader.position();
  const int fd = calls_.Open(path.c_str(), O_WRONLY | O_CLOEXEC, 0);
  if (fd < 0) return FileError("cannot open", path, errno);
  const bool is_cut =
      calls_.Truncate(fd, static_cast<off_t>(reader.position())) == 0 && calls_.Sync(fd) == 0;
  const int error = errno;
  ::close(fd);
  return is_cut ? Status::Ok() : FileError("cannot cut off the torn end of", path, error);
}

Result<Recovered> LogDirectory::Recover(std::uint32_t end_of_snapshot, const Visit& visit,
                                        const std::function<Status()>& after_snapshot) const {
  auto listing = List();
  if (!listing.ok()) return listing.status();
  const auto& [segments, snapshots, unfinished, spares] = listing.value();
  Recovered found;
  if (!snapshots.empty()) {
    found.next_lsn = snapshots.back();
    Status s = ReadSnapshot(snapshots.back(), end_of_snapshot, visit, after_snapshot, found);
    if (!s.ok()) return s;
  }
  // Among the segments that start at or below the snapshot, only the last can extend past it.
  auto first = std::ranges::upper_bound(segments, found.next_lsn);
  if (first != segments.begin()) --first;
  for (auto it = first; it != segments.end(); ++it) {
    const bool is_last = it + 1 == segments.end();
    Status s = ReadSegment(*it, is_last ? std::nullopt : std::optional(*(it + 1)), visit, found);
    if (!s.ok()) return s;
  }
  return found;
}

Status LogDirectory::RemoveFile(const std::string& path) const {
  if (calls_.Remove(path.c_str()) == 0 || errno == ENOENT) return Status::Ok();
  return FileError("cannot remove", path, errno);
}

Status LogDirectory::RemoveAll() const {
  auto listing = List();
  if (!listing.ok()) return listing.status();
  // First the file that marks the rest as complete.
  if (Status s = RemoveFile(path_ + "/EPOCH"); !s.ok()) return s;
  for (const std::uint64_t lsn : listing.value().snapshots) {
    if (Status s = RemoveFile(SnapshotPath(lsn)); !s.ok()) return s;
  }
  for (const std::uint64_t lsn : listing.value().segments) {
    if (Status s = RemoveFile(SegmentPath(lsn)); !s.ok()) return s;
  }
  for (const std::string& name : listing.value().spares) {
    if (Status s = RemoveFile(path_ + "/" + name); !s.ok()) return s;
  }
  return Status::Ok();
}

Result<std::uint64_t> LogDirectory::ReadEpoch() const {
  const std::string path = path_ + "/EPOCH";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return std::uint64_t{0};
  if (fd < 0) return FileError("cannot open", path, errno);
  char text[32] = {};
  const ssize_t bytes = ::read(fd, text, sizeof(text) - 1);
  ::close(fd);
  std::uint64_t epoch = 0;
  const auto [end, error] = std::from_chars(text, text + std::max<ssize_t>(bytes, 0), epoch);
  if (error != std::errc() || epoch == 0) return Corrupt(path, "it holds no number");
  return epoch;
}

Status LogDirectory::WriteEpoch(std::uint64_t epoch) const {
  const std::string path = path_ + "/EPOCH";
  const std::string unfinished = path + ".tmp";
  const int fd = calls_.Open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return FileError("cannot create", unfinished, errno);
  std::string text = std::to_string(epoch) + "\n";
  const iovec piece{text.data(), text.size()};
  const bool is_written =
      calls_.Writev(fd, &piece, 1) == static_cast<ssize_t>(text.size()) && calls_.Sync(fd) == 0;
  const int error = errno;
  ::close(fd);
  if (!is_written) return FileError("cannot write", unfinished, error);
  if (calls_.Rename(unfinished.c_str(), path.c_str()) != 0) {
    return FileError("cannot rename", unfinished, errno);
  }
  return SyncNames();
}

Status LogDirectory::SyncNames() const {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FileError("cannot open", path_, errno);
  const int failed = calls_.Sync(fd);
  const int error = errno;
  ::close(fd);
  return failed == 0 ? Status::Ok() : FileError("cannot sync", path_, error);
}

Status LogDirectory::RemoveBefore(std::uint64_t lsn, bool keeps_spares) const {
  auto listing = List();
  if (!listing.ok()) return listing.status();
  const auto& [segments, snapshots, unfinished, spares] = listing.value();
  for (const std::uint64_t snapshot : snapshots) {
    if (snapshot >= lsn) break;
    if (Status s = RemoveFile(SnapshotPath(snapshot)); !s.ok()) return s;
  }
  std::size_t num_spares = keeps_spares ? spares.size() : kMostSpares;
  // A segment ends where the next one starts.
  for (std::size_t i = 0; i + 1 < segments.size() && segments[i + 1] <= lsn; ++i) {
    const std::string path = SegmentPath(segments[i]);
    const std::string spare = path_ + "/" + Numbered("spare", segments[i], "seg");
    if (num_spares < kMostSpares && calls_.Rename(path.c_str(), spare.c_str()) == 0) {
      ++num_spares;
    } else if (Status s = RemoveFile(path); !s.ok()) {
      return s;
    }
  }
  return Status::Ok();
}

bool LogDirectory::RemoveSpares() const {
  auto listing = List();
  bool has_removed = false;
  if (!listing.ok()) return false;
  for (const std::string& name : listing.value().spares) {
    has_removed = calls_.Remove((path_ + "/" + name).c_str()) == 0 || has_removed;
  }
  return has_removed;
}

bool LogDirectory::TakeSpare(const std::string& path) const {
  auto listing = List();
  if (!listing.ok() || listing.value().spares.empty()) return false;
  // The newest, so that as few as possible are in use: their pages are in memory.
  const std::string spare = path_ + "/" + *std::ranges::max_element(listing.value().spares);
  return calls_.Rename(spare.c_str(), path.c_str()) == 0;
}

// Under a name that nobody takes until it is finished: this thread writes to it until then. Number
// 0 is that of no segment, so a reader takes the header for an old one.
bool LogDirectory::PrepareSpare(std::uint64_t owner, std::uint64_t bytes,
                                const std::function<bool()>& stops) const {
  auto listing = List();
  if (!listing.ok()) return false;
  if (!listing.value().spares.empty()) return true;
  std::error_code error;
  const auto space = std::filesystem::space(path_, error);
  if (error || space.available / kSpaceForSpares < bytes) return false;
  const std::string unfinished = path_ + "/spare.tmp";
  calls_.Remove(unfinished.c_str());
  bool is_written = false;
  {
    auto writer = RecordWriter::Create(unfinished, {0, owner, FileKind::kSegment}, calls_);
    is_written = writer.ok() && writer.value()->FillUp(bytes, stops);
  }
  if (is_written) {
    const std::string spare = path_ + "/" + Numbered("spare", 0, "seg");
    is_written = calls_.Rename(unfinished.c_str(), spare.c_str()) == 0;
  }
  if (!is_written) calls_.Remove(unfinished.c_str());
  return is_written;
}

}  // namespace sparsefleet
