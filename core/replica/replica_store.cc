#include "replica/replica_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "log/log.h"
#include "log/log_directory.h"

namespace sparsefleet {
namespace {

constexpr std::uint32_t kMaxServers = 1 << 16;
constexpr std::uint64_t kMaxReadBytes = 16u << 20;

FileCalls& CallsOf(const ReplicaStoreOptions& options) {
  return options.calls == nullptr ? FileCalls::System() : *options.calls;
}

// Ok if the file is a complete snapshot of this log.
Status CheckSnapshot(const std::string& path, std::uint64_t lsn, std::uint64_t owner,
                     std::uint32_t end_type) {
  auto file = MappedFile::Open(path);
  if (!file.ok()) return file.status();
  RecordReader reader(file.value().bytes());
  auto head = reader.Head();
  if (!head.ok()) return head.status();
  std::optional<std::uint32_t> last;
  while (const auto record = reader.Next()) last = record->type;
  if (head.value().kind == FileKind::kSnapshot && head.value().first_lsn == lsn &&
      head.value().owner == owner && !reader.is_torn() && last == end_type) {
    return Status::Ok();
  }
  return {Code::kCorrupt, "snapshot " + std::to_string(lsn) + " arrived damaged"};
}

}  // namespace

// The log of one server.
struct ReplicaStore::Held {
  Held(std::uint32_t index, const ReplicaStoreOptions& given) : server(index), options(given) {}
  ~Held() {
    if (snapshot_fd >= 0) ::close(snapshot_fd);
  }

  Status Open() REQUIRES(mutex);
  Result<ReplicaState> Enter(const ReplicaOpen& request) REQUIRES(mutex);
  Result<std::uint64_t> Append(const ReplicaAppend& request) REQUIRES(mutex);
  Result<std::uint64_t> TakeSnapshot(const ReplicaSnapshot& request) REQUIRES(mutex);
  Status FinishSnapshot(std::uint64_t lsn) REQUIRES(mutex);
  Result<Body> Read(const ReplicaRead& request) const REQUIRES(mutex);
  Status CheckEpoch(const ReplicaHead& head) const REQUIRES(mutex);
  Status BeginLog(std::uint64_t lsn, std::uint64_t of) REQUIRES(mutex);
  std::string Name() const { return "server " + std::to_string(server); }

  const std::uint32_t server;
  const ReplicaStoreOptions& options;
  Mutex mutex;
  std::unique_ptr<LogDirectory> directory GUARDED_BY(mutex);
  std::uint64_t epoch GUARDED_BY(mutex) = 0;
  std::uint64_t owner GUARDED_BY(mutex) = 0;
  std::uint64_t next_lsn GUARDED_BY(mutex) = 0;  // 0: nothing is held
  std::unique_ptr<Log> log GUARDED_BY(mutex);    // null until the first record comes
  int snapshot_fd GUARDED_BY(mutex) = -1;        // one that is arriving
  std::uint64_t snapshot_lsn GUARDED_BY(mutex) = 0;
  std::uint64_t snapshot_bytes GUARDED_BY(mutex) = 0;
};

Status ReplicaStore::Held::Open() {
  if (directory != nullptr) return Status::Ok();
  const std::string path = options.directory + "/server-" + std::to_string(server);
  auto opened = LogDirectory::Open(path, 0, CallsOf(options));
  if (!opened.ok()) return opened.status();
  auto found = opened.value()->Recover(options.end_of_snapshot,
                                       [](bool, const Record&) { return Status::Ok(); });
  if (!found.ok()) return found.status();
  auto known = opened.value()->ReadEpoch();
  if (!known.ok()) return known.status();
  directory = std::move(opened).value();
  epoch = known.value();
  owner = found.value().owner;
  next_lsn = owner == 0 ? 0 : found.value().next_lsn;
  return Status::Ok();
}

Status ReplicaStore::Held::CheckEpoch(const ReplicaHead& head) const {
  if (head.epoch == epoch) return Status::Ok();
  return {Code::kNotOwner, Name() + ": a successor (epoch " + std::to_string(epoch) +
                               ") has taken over from this process (epoch " +
                               std::to_string(head.epoch) + "), which must end"};
}

Result<ReplicaState> ReplicaStore::Held::Enter(const ReplicaOpen& request) {
  if (owner != 0 && request.head.owner != 0 && owner != request.head.owner) {
    return Status(Code::kInvalidArgument,
                  Name() + ": the replica holds the log of another job in " + directory->path() +
                      ": use another directory there, or an empty one for the server, which then "
                      "continues that job");
  }
  const std::uint64_t before = epoch;
  std::uint64_t after = request.head.epoch;
  if (request.claims) {
    after = std::max(epoch, request.head.epoch) + 1;
  } else if (request.head.epoch < epoch) {
    return CheckEpoch(request.head);
  }
  if (after != epoch) {
    if (Status s = directory->WriteEpoch(after); !s.ok()) return s;
    epoch = after;
  }
  auto listing = directory->List();
  if (!listing.ok()) return listing.status();
  ReplicaState state;
  state.epoch = epoch;
  state.epoch_before = before;
  state.owner = owner;
  state.next_lsn = next_lsn;
  const auto& snapshots = listing.value().snapshots;
  if (!snapshots.empty()) state.snapshot = snapshots.back();
  state.segments = listing.value().segments;
  return state;
}

Status ReplicaStore::Held::BeginLog(std::uint64_t lsn, std::uint64_t of) {
  LogOptions log_options;
  log_options.owner = of;
  log_options.is_synced = options.sync;
  auto begun = Log::Begin(*directory, lsn, log_options);
  if (!begun.ok()) return begun.status();
  log = std::move(begun).value();
  owner = of;
  next_lsn = lsn;
  return options.sync ? directory->SyncNames() : Status::Ok();
}

Result<std::uint64_t> ReplicaStore::Held::Append(const ReplicaAppend& request) {
  if (Status s = CheckEpoch(request.head); !s.ok()) return s;
  const bool follows = next_lsn == 0 ? request.first_lsn == 1 : request.first_lsn == next_lsn;
  if (request.records.empty() || !follows) return next_lsn;
  RecordReader reader(request.records, request.first_lsn);
  std::uint64_t after = request.first_lsn;
  while (const auto record = reader.Next()) after = record->lsn + 1;
  if (reader.is_torn()) {
    return Status(Code::kCorrupt,
                  Name() + ": record " + std::to_string(after) + " arrived damaged");
  }
  if (log == nullptr) {
    Status s = BeginLog(request.first_lsn, owner == 0 ? request.head.owner : owner);
    if (!s.ok()) return s;
  }
  if (Status s = log->AppendWhole(request.records, after); !s.ok()) return s;
  if (options.sync) {
    if (auto synced = log->Sync(); !synced.ok()) return synced.status();
  }
  next_lsn = after;
  return next_lsn;
}

Result<std::uint64_t> ReplicaStore::Held::TakeSnapshot(const ReplicaSnapshot& request) {
  if (Status s = CheckEpoch(request.head); !s.ok()) return s;
  const std::string path = directory->SnapshotPath(request.lsn) + ".tmp";
  FileCalls& calls = directory->calls();
  if (request.offset == 0) {
    if (snapshot_fd >= 0) ::close(std::exchange(snapshot_fd, -1));
    snapshot_fd =
        calls.Open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    if (snapshot_fd < 0) return FileError("cannot create", path, errno);
    snapshot_lsn = request.lsn;
    snapshot_bytes = 0;
  }
  if (snapshot_fd < 0 || snapshot_lsn != request.lsn || snapshot_bytes != request.offset) {
    return Status(Code::kShapeMismatch, Name() + ": a part of snapshot " +
                                            std::to_string(request.lsn) +
                                            " arrived out of order: send it again from the start");
  }
  auto left = request.bytes;
  while (!left.empty()) {
    const iovec piece{const_cast<std::byte*>(left.data()), left.size()};
    const ssize_t written = calls.Writev(snapshot_fd, &piece, 1);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      ::close(std::exchange(snapshot_fd, -1));
      calls.Remove(path.c_str());
      return FileError("cannot write", path, error);
    }
    left = left.subspan(static_cast<std::size_t>(written));
  }
  snapshot_bytes += request.bytes.size();
  if (request.is_last) {
    if (owner == 0) owner = request.head.owner;
    Status s = FinishSnapshot(request.lsn);
    ::close(std::exchange(snapshot_fd, -1));
    if (!s.ok()) {
      calls.Remove(path.c_str());
      return s;
    }
  }
  return next_lsn;
}

Status ReplicaStore::Held::FinishSnapshot(std::uint64_t lsn) {
  const std::string to = directory->SnapshotPath(lsn);
  const std::string from = to + ".tmp";
  FileCalls& calls = directory->calls();
  if (Status s = CheckSnapshot(from, lsn, owner, options.end_of_snapshot); !s.ok()) return s;
  if (options.sync && calls.Sync(snapshot_fd) != 0) return FileError("cannot sync", from, errno);
  if (calls.Rename(from.c_str(), to.c_str()) != 0) return FileError("cannot rename", from, errno);
  if (options.sync) {
    if (Status s = directory->SyncNames(); !s.ok()) return s;
  }
  if (next_lsn < lsn) {
    // The records up to the snapshot never arrived: the log held here ends before it, and starts
    // over.
    log.reset();
    auto listing = directory->List();
    if (!listing.ok()) return listing.status();
    for (const std::uint64_t segment : listing.value().segments) {
      calls.Remove(directory->SegmentPath(segment).c_str());
    }
    next_lsn = lsn;
  }
  return directory->RemoveBefore(lsn, true);
}

Result<Body> ReplicaStore::Held::Read(const ReplicaRead& request) const {
  if (Status s = CheckEpoch(request.head); !s.ok()) return s;
  const std::string path = request.is_snapshot ? directory->SnapshotPath(request.lsn)
                                               : directory->SegmentPath(request.lsn);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError("cannot open", path, errno);
  Body body(static_cast<std::size_t>(std::min(request.max_bytes, kMaxReadBytes)));
  const ssize_t bytes = ::pread(fd, body.data(), body.size(), static_cast<off_t>(request.offset));
  const int error = errno;
  ::close(fd);
  if (bytes < 0) return FileError("cannot read", path, error);
  body.resize(static_cast<std::size_t>(bytes));
  return body;
}

ReplicaStore::ReplicaStore(ReplicaStoreOptions options) : options_(std::move(options)) {}
ReplicaStore::~ReplicaStore() = default;

Result<std::shared_ptr<ReplicaStore::Held>> ReplicaStore::Find(std::uint32_t server) {
  if (server >= kMaxServers) {
    return Status(Code::kInvalidArgument, "replica: server " + std::to_string(server) +
                                              ", expected below " + std::to_string(kMaxServers));
  }
  MutexLock lock(mutex_);
  auto& held = held_[server];
  if (held == nullptr) held = std::make_shared<Held>(server, options_);
  return held;
}

Result<Body> ReplicaStore::Handle(MessageType type, std::span<const std::byte> body) {
  const auto run = [&](auto decoded, auto work) -> Result<Body> {
    if (!decoded.ok()) return decoded.status();
    auto held = Find(decoded.value().head.server);
    if (!held.ok()) return held.status();
    MutexLock lock(held.value()->mutex);
    if (Status s = held.value()->Open(); !s.ok()) return s;
    return work(*held.value(), decoded.value());
  };
  const auto number = [](const Result<std::uint64_t>& next) -> Result<Body> {
    if (!next.ok()) return next.status();
    return EncodeNumber(next.value());
  };
  switch (type) {
    case MessageType::kReplicaOpen:
      return run(DecodeReplicaOpen(body), [](Held& held, const auto& request) -> Result<Body> {
        held.mutex.AssertHeld();
        auto state = held.Enter(request);
        if (!state.ok()) return state.status();
        return Encode(state.value());
      });
    case MessageType::kReplicaAppend:
      return run(DecodeReplicaAppend(body), [&](Held& held, const auto& request) {
        held.mutex.AssertHeld();
        return number(held.Append(request));
      });
    case MessageType::kReplicaSnapshot:
      return run(DecodeReplicaSnapshot(body), [&](Held& held, const auto& request) {
        held.mutex.AssertHeld();
        return number(held.TakeSnapshot(request));
      });
    case MessageType::kReplicaRead:
      return run(DecodeReplicaRead(body), [](Held& held, const auto& request) {
        held.mutex.AssertHeld();
        return held.Read(request);
      });
    default:
      return Status(Code::kProtocol, "not a request to a replica");
  }
}

void ReplicaStore::AddStats(StatMap& stats) const {
  MutexLock lock(mutex_);
  for (const auto& [server, held] : held_) {
    const std::string prefix = "replica.server-" + std::to_string(server) + ".";
    MutexLock held_lock(held->mutex);
    stats[prefix + "epoch"] = static_cast<double>(held->epoch);
    stats[prefix + "records"] = static_cast<double>(held->next_lsn);
  }
}

}  // namespace sparsefleet
