#include "log/log_directory.h"

#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <thread>

namespace sparsefleet {
namespace {

constexpr auto kLockRetry = std::chrono::milliseconds(20);

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

std::string HolderOf(int lock) {
  char text[32] = {};
  if (::pread(lock, text, sizeof(text) - 1, 0) <= 0) return "another process";
  return "process " + std::string(text);
}

Status Corrupt(const std::string& path, const std::string& why) {
  return {Code::kCorrupt, "log file " + path + ": " + why};
}

}  // namespace

Result<std::unique_ptr<LogDirectory>> LogDirectory::Open(const std::string& path, double wait_s,
                                                         FileCalls& calls) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return Status(Code::kIo, "cannot make log directory " + path + ": " + error.message());
  std::filesystem::permissions(path, std::filesystem::perms::owner_all, error);
  const std::string lock_path = path + "/LOCK";
  const int lock = ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock < 0) return FileError("cannot open", lock_path, errno);
  std::unique_ptr<LogDirectory> directory(new LogDirectory(path, lock, calls));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(wait_s);
  while (::flock(lock, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) {
      return FileError("cannot lock", lock_path, errno);
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      return Status(Code::kIo, "log directory " + path + " belongs to " + HolderOf(lock) +
                                   ", which still runs or is stopped: end it first, or use "
                                   "another directory");
    }
    std::this_thread::sleep_for(kLockRetry);
  }
  const std::string pid = std::to_string(::getpid());
  if (::ftruncate(lock, 0) != 0 ||
      ::pwrite(lock, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return FileError("cannot write", lock_path, errno);
  }
  auto listing = directory->List();
  if (!listing.ok()) return listing.status();
  for (const std::string& name : listing.value().unfinished) {
    calls.Remove((path + "/" + name).c_str());
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
  }
  if (error) {
    return Status(Code::kIo, "cannot list log directory " + path_ + ": " + error.message());
  }
  std::ranges::sort(listing.segments);
  std::ranges::sort(listing.snapshots);
  return listing;
}

Status LogDirectory::ReadSnapshot(std::uint64_t lsn, std::uint32_t end, const Visit& visit,
                                  Recovered& found) const {
  const std::string path = SnapshotPath(lsn);
  auto file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  RecordReader reader(file.value().bytes());
  auto head = reader.Head();
  if (!head.ok()) return Corrupt(path, head.status().message());
  if (head.value().kind != FileKind::kSnapshot || head.value().first_lsn != lsn) {
    return Corrupt(path, "its head is that of another file");
  }
  found.owner = head.value().owner;
  found.snapshot_lsn = lsn;
  found.snapshot_bytes = file.value().bytes().size();
  while (const auto record = reader.Next()) {
    if (record->type == end) return Status::Ok();
    if (Status s = visit(true, *record); !s.ok()) return s.WithPrefix(path + ": ");
  }
  return Corrupt(path, "it ends or is damaged at byte " + std::to_string(reader.position()) +
                           ", before its last record");
}

Status LogDirectory::ReadSegment(std::uint64_t lsn, bool is_last, const Visit& visit,
                                 Recovered& found) const {
  const std::string path = SegmentPath(lsn);
  auto file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  const auto bytes = file.value().bytes();
  RecordReader reader(bytes);
  auto head = reader.Head();
  if (!head.ok()) {
    // The process ended while it began the segment.
    if (!is_last || bytes.size() >= kFileHeadBytes) return Corrupt(path, head.status().message());
    found.torn_bytes += bytes.size();
    if (calls_.Remove(path.c_str()) != 0) return FileError("cannot remove", path, errno);
    return Status::Ok();
  }
  if (head.value().kind != FileKind::kSegment || head.value().first_lsn != lsn) {
    return Corrupt(path, "its head is that of another file");
  }
  if (found.owner != 0 && head.value().owner != found.owner) {
    return Corrupt(path, "it belongs to another server than the files before it");
  }
  if (lsn > found.next_lsn) {
    return Corrupt(path, "records " + std::to_string(found.next_lsn) + " to " +
                             std::to_string(lsn - 1) + " are missing before it");
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
    return Corrupt(path, "the record at byte " + std::to_string(reader.position()) +
                             " is damaged, and there are later ones");
  }
  found.torn_bytes += bytes.size() - reader.position();
  const int fd = calls_.Open(path.c_str(), O_WRONLY | O_CLOEXEC, 0);
  if (fd < 0) return FileError("cannot open", path, errno);
  const bool is_cut =
      calls_.Truncate(fd, static_cast<off_t>(reader.position())) == 0 && calls_.Sync(fd) == 0;
  const int error = errno;
  ::close(fd);
  return is_cut ? Status::Ok() : FileError("cannot cut the torn end off", path, error);
}

Result<Recovered> LogDirectory::Recover(std::uint32_t end_of_snapshot, const Visit& visit) {
  auto listing = List();
  if (!listing.ok()) return listing.status();
  const auto& [segments, snapshots, unfinished] = listing.value();
  Recovered found;
  if (!snapshots.empty()) {
    found.next_lsn = snapshots.back();
    Status s = ReadSnapshot(snapshots.back(), end_of_snapshot, visit, found);
    if (!s.ok()) return s;
  }
  // Of segments that begin at or below the snapshot only the last may reach beyond it.
  auto first = std::ranges::upper_bound(segments, found.next_lsn);
  if (first != segments.begin()) --first;
  for (auto it = first; it != segments.end(); ++it) {
    Status s = ReadSegment(*it, it + 1 == segments.end(), visit, found);
    if (!s.ok()) return s;
  }
  return found;
}

Status LogDirectory::SyncNames() const {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FileError("cannot open", path_, errno);
  const int failed = calls_.Sync(fd);
  const int error = errno;
  ::close(fd);
  return failed == 0 ? Status::Ok() : FileError("cannot sync", path_, error);
}

Status LogDirectory::RemoveBefore(std::uint64_t lsn) const {
  auto listing = List();
  if (!listing.ok()) return listing.status();
  const auto& [segments, snapshots, unfinished] = listing.value();
  const auto remove = [&](const std::string& path) {
    if (calls_.Remove(path.c_str()) == 0 || errno == ENOENT) return Status::Ok();
    return FileError("cannot remove", path, errno);
  };
  for (const std::uint64_t snapshot : snapshots) {
    if (snapshot >= lsn) break;
    if (Status s = remove(SnapshotPath(snapshot)); !s.ok()) return s;
  }
  // A segment ends where the next one begins.
  for (std::size_t i = 0; i + 1 < segments.size() && segments[i + 1] <= lsn; ++i) {
    if (Status s = remove(SegmentPath(segments[i])); !s.ok()) return s;
  }
  return Status::Ok();
}

}  // namespace sparsefleet
