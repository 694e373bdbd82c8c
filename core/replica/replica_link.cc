#include "replica/replica_link.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "transport/frame.h"

namespace sparsefleet {
namespace {

using std::chrono::steady_clock;

constexpr double kConnectS = 1.0;
constexpr double kAskS = 2.0;
constexpr double kBytesPerS = 20e6;  // a replica is not slower, over its network and to its disk
constexpr double kNever = 1e6;
constexpr std::uint64_t kReadAtStart = 2ull << 30;
constexpr auto kPause = std::chrono::milliseconds(50);       // between tries
constexpr auto kIdleCheck = std::chrono::milliseconds(500);  // that nobody has taken over
constexpr std::size_t kBatchBytes = 4u << 20;
constexpr std::size_t kPartBytes = 4u << 20;
constexpr std::uint64_t kMaxFrameBytes = 0xffffffff;

GatheredBody Whole(Body body) {
  GatheredBody gathered;
  gathered.heads = std::move(body);
  gathered.bytes = gathered.heads.size();
  gathered.pieces.push_back({gathered.heads.data(), gathered.heads.size()});
  return gathered;
}

std::string SecondsText(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g s", seconds);
  return text;
}

class OwnedFile {
 public:
  explicit OwnedFile(int fd) : fd_(fd) {}
  ~OwnedFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OwnedFile(const OwnedFile&) = delete;
  OwnedFile& operator=(const OwnedFile&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace

ReplicaLink::ReplicaLink(const LogDirectory& directory, ReplicaLinkOptions options)
    : directory_(directory), options_(std::move(options)), cursor_(directory) {}

ReplicaLink::~ReplicaLink() { Stop(); }

void ReplicaLink::Stop() {
  is_stopping_ = true;
  changed_.notify_all();
  watcher_.request_stop();
  if (watcher_.joinable()) watcher_.join();
}

ReplicaHead ReplicaLink::Head() const { return {options_.server, epoch_, owner_}; }

Status ReplicaLink::Connect(double timeout_s) {
  ClientOptions options;
  options.endpoints = {options_.endpoint};
  options.security = options_.security;
  options.name = "server-" + std::to_string(options_.server);
  options.connect_timeout_s = timeout_s;
  options.try_timeout_s = kNever;
  options.max_frame_bytes = kMaxFrameBytes;
  auto client = Client::Connect(std::move(options));
  if (!client.ok()) return client.status();
  client_ = std::move(client).value();
  return Status::Ok();
}

// After a connection error the next try opens a new connection.
Result<Body> ReplicaLink::Ask(MessageType type, GatheredBody body, std::uint64_t more_bytes) {
  const double bytes = static_cast<double>(body.bytes + more_bytes);
  auto reply = client_->Ask(type, std::move(body), kAskS + bytes / kBytesPerS);
  if (!reply.ok()) client_.reset();
  return reply;
}

Result<ReplicaState> ReplicaLink::Enter(bool claims) {
  // At first the replica may have to read everything it holds.
  const std::uint64_t read_bytes = claims ? kReadAtStart : 0;
  auto reply =
      Ask(MessageType::kReplicaOpen, Whole(Encode(ReplicaOpen{Head(), claims})), read_bytes);
  if (!reply.ok()) return reply.status();
  auto state = DecodeReplicaState(reply.value());
  if (!state.ok()) return state.status();
  epoch_ = state.value().epoch;
  known_epoch_ = epoch_;
  replica_next_ = state.value().next_lsn;
  shipped_end_ = replica_next_;
  shipped_snapshot_ = state.value().snapshot;
  return state;
}

Result<std::unique_ptr<ReplicaLink>> ReplicaLink::Open(const LogDirectory& directory,
                                                       ReplicaLinkOptions options) {
  std::unique_ptr<ReplicaLink> link(new ReplicaLink(directory, std::move(options)));
  MutexLock lock(link->io_);
  Status s = link->Connect(link->options_.start_wait_s);
  if (s.ok()) s = link->TakeOver();
  if (s.ok()) return link;
  return s.WithPrefix("replica " + link->options_.endpoint +
                      ": a server with a replica does not start without it, since its log may lack "
                      "what a successor has written: ");
}

Status ReplicaLink::TakeOver() {
  auto here = directory_.Recover(options_.end_of_snapshot,
                                 [](bool, const Record&) { return Status::Ok(); });
  if (!here.ok()) {
    return here.status().WithPrefix("empty the directory to get the replica's copy: ");
  }
  auto epoch = directory_.ReadEpoch();
  if (!epoch.ok()) return epoch.status();
  epoch_ = epoch.value();
  owner_ = here.value().owner;
  auto state = Enter(true);
  if (!state.ok()) return state.status();
  const ReplicaState& there = state.value();
  const bool is_behind = there.next_lsn > 0 && (owner_ == 0 || there.epoch_before > epoch.value() ||
                                                there.next_lsn > here.value().next_lsn);
  if (is_behind) {
    if (Status s = Fetch(there); !s.ok()) return s;
    options_.log(0, "fetched the log of epoch " + std::to_string(there.epoch_before) +
                        " from replica " + options_.endpoint + ": records up to " +
                        std::to_string(there.next_lsn - 1));
  }
  return directory_.WriteEpoch(epoch_);
}

Status ReplicaLink::Fetch(const ReplicaState& state) {
  if (Status s = directory_.RemoveAll(); !s.ok()) return s;
  owner_ = state.owner;
  if (state.snapshot > 0) {
    Status s = FetchFile(true, state.snapshot, directory_.SnapshotPath(state.snapshot));
    if (!s.ok()) return s;
  }
  for (const std::uint64_t segment : state.segments) {
    Status s = FetchFile(false, segment, directory_.SegmentPath(segment));
    if (!s.ok()) return s;
  }
  return Status::Ok();
}

Status ReplicaLink::FetchFile(bool is_snapshot, std::uint64_t lsn, const std::string& path) {
  FileCalls& calls = directory_.calls();
  const OwnedFile file(
      calls.Open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600));
  if (file.fd() < 0) return FileError("cannot create", path, errno);
  for (std::uint64_t offset = 0;;) {
    const ReplicaRead request{Head(), is_snapshot, lsn, offset, kPartBytes};
    auto part = Ask(MessageType::kReplicaRead, Whole(Encode(request)), kPartBytes);
    if (!part.ok()) return part.status();
    if (part.value().empty()) return Status::Ok();
    std::span<std::byte> left = part.value();
    offset += left.size();
    while (!left.empty()) {
      const iovec piece{left.data(), left.size()};
      const ssize_t written = calls.Writev(file.fd(), &piece, 1);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return FileError("cannot write", path, errno);
      left = left.subspan(static_cast<std::size_t>(written));
    }
  }
}

void ReplicaLink::Start(const Log& log, std::uint64_t owner) {
  {
    MutexLock lock(io_);
    log_ = &log;
    owner_ = owner;
  }
  watcher_ = std::jthread([this](const std::stop_token& stop) { Watch(stop); });
}

Status ReplicaLink::EnsureConnected() {
  if (client_ != nullptr) return Status::Ok();
  if (Status s = Connect(kConnectS); !s.ok()) return s;
  return Enter(false).status();
}

Status ReplicaLink::ShipRecords(std::uint64_t end) {
  if (Status s = EnsureConnected(); !s.ok()) return s;
  while (replica_next_ < end) {
    auto batch = replica_next_ == 0 ? cursor_.Read(1, log_->tail(), kBatchBytes)
                                    : cursor_.Read(replica_next_, log_->tail(), kBatchBytes);
    if (batch.status().code() == Code::kNotFound) {
      if (Status s = ShipNewestSnapshot(); !s.ok()) return s;
      continue;
    }
    if (!batch.ok()) return batch.status();
    const auto& [first, next, records] = batch.value();
    auto reply = Ask(MessageType::kReplicaAppend, Gather(ReplicaAppend{Head(), first, records}));
    if (!reply.ok()) return reply.status();
    auto held = DecodeNumber(reply.value());
    if (!held.ok()) return held.status();
    if (held.value() == first) {
      return {Code::kInternal, "the replica rejected record " + std::to_string(first)};
    }
    replica_next_ = held.value();
    shipped_end_ = replica_next_;
    shipped_bytes_ += records.size();
  }
  return Status::Ok();
}

Status ReplicaLink::ShipPart(std::uint64_t lsn, int fd, std::uint64_t size, std::uint64_t& offset) {
  if (Status s = EnsureConnected(); !s.ok()) return s;
  std::vector<std::byte> bytes(
      static_cast<std::size_t>(std::min<std::uint64_t>(kPartBytes, size - offset)));
  const ssize_t got = ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
  if (got != static_cast<ssize_t>(bytes.size())) {
    return FileError("cannot read", directory_.SnapshotPath(lsn), got < 0 ? errno : EIO);
  }
  const bool is_last = offset + bytes.size() == size;
  auto reply =
      Ask(MessageType::kReplicaSnapshot,
          Gather(ReplicaSnapshot{Head(), lsn, offset, is_last, bytes}), is_last ? size : 0);
  if (!reply.ok()) return reply.status();
  auto held = DecodeNumber(reply.value());
  if (!held.ok()) return held.status();
  offset += bytes.size();
  shipped_bytes_ += bytes.size();
  replica_next_ = held.value();
  shipped_end_ = replica_next_;
  if (is_last) shipped_snapshot_ = std::max(shipped_snapshot_.load(), lsn);
  return Status::Ok();
}

// The snapshot may be replaced by a newer one meanwhile; an open file stays readable.
Status ReplicaLink::ShipNewestSnapshot() {
  auto listing = directory_.List();
  if (!listing.ok()) return listing.status();
  if (listing.value().snapshots.empty()) {
    return {Code::kCorrupt, directory_.path() +
                                " has neither the records that the replica lacks "
                                "nor a snapshot"};
  }
  const std::uint64_t lsn = listing.value().snapshots.back();
  const OwnedFile file(::open(directory_.SnapshotPath(lsn).c_str(), O_RDONLY | O_CLOEXEC));
  struct stat found{};
  if (file.fd() < 0 || ::fstat(file.fd(), &found) != 0) {
    return FileError("cannot open", directory_.SnapshotPath(lsn), errno);
  }
  const auto size = static_cast<std::uint64_t>(found.st_size);
  for (std::uint64_t offset = 0; offset < size && !is_stopping_;) {
    if (Status s = ShipPart(lsn, file.fd(), size, offset); !s.ok()) return s;
  }
  return Status::Ok();
}

Status ReplicaLink::AwaitRecords(std::uint64_t end) {
  for (;;) {
    {
      MutexLock lock(mutex_);
      if (!fenced_.ok()) return fenced_;
      if (is_degraded_) return Status::Ok();  // the watcher looks for the replica
    }
    Status outcome;
    {
      MutexLock lock(io_);
      outcome = ShipRecords(end);
    }
    if (auto over = Judge(outcome)) return *over;
    Pause();
  }
}

Status ReplicaLink::AwaitSnapshot(std::uint64_t lsn) {
  const std::string path = directory_.SnapshotPath(lsn);
  const OwnedFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat found{};
  if (file.fd() < 0 || ::fstat(file.fd(), &found) != 0) {
    return FileError("cannot open", path, errno);
  }
  const auto size = static_cast<std::uint64_t>(found.st_size);
  std::uint64_t offset = 0;
  while (shipped_snapshot_ < lsn) {
    Status outcome;
    {
      MutexLock lock(io_);  // records go in between
      outcome = ShipPart(lsn, file.fd(), size, offset);
    }
    if (outcome.ok()) continue;
    offset = 0;
    // Out of order: the records that the replica lacked have since been shipped as a snapshot.
    if (outcome.code() == Code::kShapeMismatch) continue;
    if (auto over = Judge(outcome)) return *over;
    Pause();
  }
  return Status::Ok();
}

std::optional<Status> ReplicaLink::Judge(const Status& outcome) {
  if (outcome.ok()) {
    NoteBack();
    return Status::Ok();
  }
  if (is_stopping_)
    return Status(Code::kShuttingDown, "the server is stopping, and its replica is lost");
  if (outcome.code() == Code::kNotOwner) {
    {
      MutexLock lock(mutex_);
      fenced_ = outcome;
    }
    options_.on_fenced(outcome);
    return outcome;
  }
  NoteLost(outcome);
  MutexLock lock(mutex_);
  if (!fenced_.ok()) return fenced_;
  if (is_degraded_) return Status::Ok();
  return std::nullopt;
}

void ReplicaLink::Pause() {
  MutexLock lock(mutex_);
  changed_.WaitUntil(mutex_, steady_clock::now() + kPause, [&] { return is_stopping_.load(); });
}

void ReplicaLink::NoteLost(const Status& why) {
  const std::string name = "replica " + options_.endpoint;
  const bool waits_forever = std::isinf(options_.wait_s);
  bool is_new = false;
  bool gives_up = false;
  {
    MutexLock lock(mutex_);
    const auto now = steady_clock::now();
    is_new = !lost_since_.has_value();
    if (is_new) {
      lost_since_ = now;
      ++losses_;
    }
    const double lost_s = std::chrono::duration<double>(now - *lost_since_).count();
    gives_up = !is_degraded_ && !waits_forever && lost_s >= options_.wait_s;
    if (gives_up) is_degraded_ = true;
  }
  if (is_new) {
    options_.log(2, name + " is lost; changes wait for it " +
                        (waits_forever ? std::string("until it is back")
                                       : "for " + SecondsText(options_.wait_s)) +
                        ": " + why.message());
  }
  if (gives_up) {
    options_.log(2, name + " has been lost for " + SecondsText(options_.wait_s) +
                        ": the server continues WITHOUT IT; changes acknowledged from now on are "
                        "lost with this machine, until the replica is back");
  }
}

void ReplicaLink::NoteBack() {
  {
    MutexLock lock(mutex_);
    if (!lost_since_) return;
    lost_since_.reset();
    is_degraded_ = false;
  }
  options_.log(1, "replica " + options_.endpoint + " is back and holds everything again");
}

// Brings a replica that is back up to date, and notices a successor while nothing is pushed.
void ReplicaLink::Watch(const std::stop_token& stop) {
  while (!stop.stop_requested() && !is_stopping_) {
    {
      MutexLock lock(mutex_);
      changed_.WaitUntil(mutex_, steady_clock::now() + kIdleCheck,
                         [&] { return is_stopping_.load(); });
      if (!fenced_.ok()) return;
    }
    if (is_stopping_) return;
    Status outcome;
    {
      MutexLock lock(io_);
      outcome = ShipRecords(log_->tail().next_lsn);
      if (outcome.ok()) {
        const ReplicaAppend nothing{Head(), replica_next_, {}};
        outcome = Ask(MessageType::kReplicaAppend, Gather(nothing)).status();
      }
    }
    (void)Judge(outcome);
  }
}

void ReplicaLink::AddStats(StatMap& stats) const {
  const std::uint64_t next = log_ == nullptr ? 0 : log_->next_lsn();
  const std::uint64_t shipped = shipped_end_;
  MutexLock lock(mutex_);
  stats["log.replica_lag_records"] = static_cast<double>(next - std::min(next, shipped));
  stats["log.replica_bytes"] = static_cast<double>(shipped_bytes_.load());
  stats["log.replica_epoch"] = static_cast<double>(known_epoch_.load());
  stats["log.replica_losses"] = static_cast<double>(losses_);
  stats["log.replica_lost"] = lost_since_ ? 1.0 : 0.0;
  stats["log.replica_degraded"] = is_degraded_ ? 1.0 : 0.0;
}

}  // namespace sparsefleet
