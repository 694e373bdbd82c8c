#include "server/journal.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "store/deadline.h"

namespace sparsefleet {
namespace {

// What a replay costs, about: dense values are read and added, rows are looked up.
constexpr double kReplaySPerByte = 0.4e-9;
constexpr double kReplaySPerRow = 150e-9;
constexpr double kLongestReplayS = 0.5;
constexpr std::uint64_t kShortestLog = 32ull << 20;
// A log this much longer than the snapshot that would replace it is not worth its pages: writing to
// those of a segment that is reused costs a fraction of what new ones cost.
constexpr std::uint64_t kLogPerSnapshot = 16;
constexpr std::uint64_t kLongLog = 256ull << 20;
// How often a full disk is tried again.
constexpr auto kSpaceCheck = std::chrono::milliseconds(100);

iovec PieceOf(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

double SecondsSince(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

Status DiskFull(const std::string& directory, const std::string& cause) {
  struct statvfs found{};
  std::string space;
  if (::statvfs(directory.c_str(), &found) == 0) {
    space = "; " + std::to_string(std::uint64_t{found.f_bavail} * found.f_frsize) +
            " bytes are free in " + directory;
  }
  return {Code::kDiskFull, "the server cannot write its log: " + cause + space +
                               ": free space there, or raise the quota or limit"};
}

}  // namespace

Result<std::unique_ptr<Journal>> Journal::Open(JournalOptions options) {
  if (options.directory.empty()) {
    return Status(Code::kInvalidArgument,
                  "a durable server needs a directory for its log: set log_dir (--log-dir)");
  }
  std::unique_ptr<Journal> journal(new Journal(std::move(options)));
  const JournalOptions& given = journal->options_;
  FileCalls& calls = given.calls == nullptr ? FileCalls::System() : *given.calls;
  auto directory = LogDirectory::Open(given.directory, given.lock_wait_s, calls, given.take_over);
  if (!directory.ok()) return directory.status();
  journal->directory_ = std::move(directory).value();
  if (given.durability != Durability::kReplica) return journal;
  if (given.replica.endpoint.empty()) {
    return Status(Code::kInvalidArgument,
                  "durability 'replica' needs the address of a replica: set replica (--replica)");
  }
  ReplicaLinkOptions link = given.replica;
  link.end_of_snapshot = static_cast<std::uint32_t>(LogRecord::kEndOfSnapshot);
  link.on_fenced = given.on_failure;
  link.log = given.log;
  auto replica = ReplicaLink::Open(*journal->directory_, std::move(link));
  if (!replica.ok()) return replica.status();
  journal->replica_ = std::move(replica).value();
  return journal;
}

Journal::~Journal() { Interrupt(); }

Status Journal::Recover(std::uint64_t incarnation, const LogDirectory::Visit& visit,
                        const std::function<Status()>& after_snapshot) {
  const auto begun = std::chrono::steady_clock::now();
  auto found = directory_->Recover(static_cast<std::uint32_t>(LogRecord::kEndOfSnapshot), visit,
                                   after_snapshot);
  if (!found.ok()) return found.status();
  recovered_ = found.value();
  owner_ = recovered_.owner != 0 ? recovered_.owner : incarnation;
  snapshot_size_ = recovered_.snapshot_bytes;
  LogOptions log_options;
  log_options.owner = owner_;
  log_options.segment_bytes = options_.segment_bytes;
  log_options.is_synced = options_.durability == Durability::kDisk;
  log_options.prepares_segments = !log_options.is_synced;
  Status started = AwaitSpaceToStart([&] {
    auto log = Log::Begin(*directory_, recovered_.next_lsn, log_options);
    if (log.ok()) log_ = std::move(log).value();
    return log.status();
  });
  if (!started.ok()) return started;
  if (options_.durability == Durability::kDisk) {
    if (Status s = directory_->SyncNames(); !s.ok()) return s;
  }
  if (replica_ != nullptr) replica_->Start(*log_, owner_);
  commit_ = std::make_unique<GroupCommit>(
      [this] { return MakeDurable(); },
      [this](const Status& status) {
        if (status.code() != Code::kShuttingDown && options_.on_failure) {
          options_.on_failure(status);
        }
      });
  recovery_s_ = SecondsSince(begun);
  return Status::Ok();
}

Status Journal::Append(LogRecord type, std::span<const iovec> pieces) {
  const auto begun = std::chrono::steady_clock::now();
  auto lsn = log_->Append(static_cast<std::uint32_t>(type), pieces);
  append_times_.Observe(SecondsSince(begun));
  if (log_->num_held() > 0 && !is_full_.exchange(true)) BeginFull();
  if (lsn.ok()) return Status::Ok();
  if (log_->is_broken() && options_.on_failure) options_.on_failure(lsn.status());
  return lsn.status().WithPrefix("nothing was changed: the server cannot write its log: ");
}

Status Journal::Append(LogRecord type, std::span<const std::byte> payload) {
  const iovec piece = PieceOf(payload);
  return Append(type, {&piece, 1});
}

Status Journal::Append(LogRecord type, const RequestHead& head, std::span<const iovec> body) {
  std::vector<iovec> pieces;
  pieces.reserve(body.size() + 1);
  pieces.push_back(PieceOf(std::as_bytes(std::span(&head, 1))));
  pieces.insert(pieces.end(), body.begin(), body.end());
  return Append(type, pieces);
}

Status Journal::Append(std::string_view table, std::span<const Key> keys, std::uint64_t step,
                       std::uint32_t seconds) {
  BodyWriter head;
  head.Put(step);
  head.Put(seconds);
  head.PutString(table);
  head.Put(static_cast<std::uint64_t>(keys.size()));
  head.Pad();
  CountRows(keys.size());
  const iovec pieces[] = {PieceOf(head.bytes()), PieceOf(std::as_bytes(keys))};
  return Append(LogRecord::kBirths, pieces);
}

void Journal::WhenDurable(std::function<void()> done) {
  const bool is_written = log_->num_held() == 0;
  if (options_.durability == Durability::kProcess && is_written) return done();
  commit_->When(log_->next_lsn(), std::move(done));
}

Result<std::uint64_t> Journal::MakeDurable() {
  if (Status s = AwaitSpace(); !s.ok()) return s;
  if (options_.durability == Durability::kDisk) {
    const auto began = std::chrono::steady_clock::now();
    auto end = log_->Sync();
    sync_times_.Observe(SecondsSince(began));
    return end;
  }
  const std::uint64_t end = log_->tail().next_lsn;
  if (replica_ != nullptr) {
    if (Status s = replica_->AwaitRecords(end); !s.ok()) return s;
  }
  return end;
}

// The thread of the commits writes the held records, even if no reply waits for them.
void Journal::BeginFull() {
  {
    MutexLock lock(full_mutex_);
    full_since_ = std::chrono::steady_clock::now();
    full_cause_ = "the disk is full";
    ++times_full_;
  }
  commit_->When(log_->next_lsn(), [] {});
}

Status Journal::AwaitSpace() {
  bool is_reported = false;
  while (is_full()) {
    const Status written = log_->WriteHeld();
    if (written.ok()) {
      is_full_ = false;
      // A record that came in between found it full.
      if (log_->num_held() > 0 && !is_full_.exchange(true)) continue;
      MutexLock lock(full_mutex_);
      const double lasted_s = SecondsSince(full_since_);
      full_s_ += lasted_s;
      lock.unlock();
      if (is_reported) {
        Report(1, "the log in " + options_.directory + " can be written again, after " +
                      ShowSeconds(lasted_s) + "; nothing was lost");
      }
      return Status::Ok();
    }
    if (written.code() != Code::kDiskFull) return written;
    {
      MutexLock lock(full_mutex_);
      full_cause_ = written.message();
    }
    if (!std::exchange(is_reported, true)) {
      Report(2, FullStatus().message() + "; changes wait until there is space");
    }
    MutexLock lock(full_mutex_);
    const bool ends =
        interrupted_.WaitUntil(full_mutex_, std::chrono::steady_clock::now() + kSpaceCheck,
                               [&]() REQUIRES(full_mutex_) { return is_interrupted_; });
    if (ends) return {Code::kShuttingDown, "the server is stopping, and its disk is full"};
  }
  return Status::Ok();
}

Status Journal::AwaitSpaceToStart(const std::function<Status()>& write) const {
  const auto begun = std::chrono::steady_clock::now();
  for (bool is_reported = false;;) {
    const Status written = write();
    if (written.code() != Code::kDiskFull) return written;
    const Status full = DiskFull(options_.directory, written.message());
    if (SecondsSince(begun) > options_.space_wait_s) return full;
    if (!std::exchange(is_reported, true)) {
      Report(2, full.message() + "; the server starts when there is space");
    }
    std::this_thread::sleep_for(kSpaceCheck);
  }
}

Status Journal::FullStatus() const {
  MutexLock lock(full_mutex_);
  return DiskFull(options_.directory, full_cause_);
}

void Journal::Interrupt() {
  {
    MutexLock lock(full_mutex_);
    is_interrupted_ = true;
  }
  interrupted_.notify_all();
  if (replica_ != nullptr) replica_->Stop();
}

void Journal::Stop() {
  Interrupt();
  if (commit_ != nullptr) commit_->Stop();
}

Result<std::uint64_t> Journal::BeginSnapshot() {
  auto lsn = log_->Rotate();
  if (lsn.ok()) {
    bytes_at_snapshot_ = log_->bytes();
    rows_ = 0;
  }
  return lsn;
}

Result<std::unique_ptr<SnapshotWriter>> Journal::WriteSnapshot(std::uint64_t lsn) const {
  return SnapshotWriter::Begin(*directory_, owner_, lsn);
}

Status Journal::CommitSnapshot(SnapshotWriter& snapshot, double seconds) {
  const bool sync = options_.durability == Durability::kDisk;
  Status s = snapshot.Commit(static_cast<std::uint32_t>(LogRecord::kEndOfSnapshot), sync);
  if (!s.ok()) return s;
  snapshot_size_ = snapshot.bytes();
  snapshot_s_ = seconds;
  ++snapshots_;
  return replica_ == nullptr ? Status::Ok() : replica_->AwaitSnapshot(snapshot.lsn());
}

bool Journal::IsSnapshotDue() const {
  std::uint64_t grown = log_->bytes() - bytes_at_snapshot_;
  if (snapshots_ == 0) grown += recovered_.bytes;
  // A snapshot costs about as much as writing its size. The log may have half of that, so that it
  // adds to the time in which the snapshot is read, but never multiplies it.
  if (grown <= snapshot_size_ / 2 || is_full()) return false;
  const std::uint64_t long_log = std::max(kLongLog, kLogPerSnapshot * snapshot_size_);
  if (grown > std::min(options_.snapshot_bytes, long_log)) return true;
  const double replay_s = kReplaySPerByte * static_cast<double>(grown) +
                          kReplaySPerRow * static_cast<double>(rows_.load());
  return grown > kShortestLog && replay_s > kLongestReplayS;
}

void Journal::AddStats(StatMap& stats) const {
  const auto add = [&](const char* name, auto value) {
    stats[std::string("log.") + name] = static_cast<double>(value);
  };
  add("bytes", log_->bytes());
  add("records", log_->next_lsn() - recovered_.next_lsn);
  add("replayed_records", recovered_.records);
  add("replayed_bytes", recovered_.bytes);
  add("torn_bytes", recovered_.torn_bytes);
  add("recovery_s", recovery_s_);
  add("snapshots", snapshots_.load());
  add("snapshot_s", snapshot_s_.load());
  add("snapshot_bytes", snapshot_size_.load());
  add("duplicates_dropped", duplicates_dropped.load());
  const bool has_lag = commit_ != nullptr && options_.durability != Durability::kProcess;
  const std::uint64_t next = log_->next_lsn();
  add("lag_records", has_lag ? next - std::min(next, commit_->durable_end()) : log_->num_held());
  add("replies_waiting", commit_ == nullptr ? 0 : commit_->num_waiting());
  {
    MutexLock lock(full_mutex_);
    add("disk_full", is_full() ? 1 : 0);
    add("disk_full_total", times_full_);
    add("disk_full_s", full_s_ + (is_full() ? SecondsSince(full_since_) : 0));
  }
  if (replica_ != nullptr) replica_->AddStats(stats);
  append_times_.AddTo(stats, "log.append_seconds");
  sync_times_.AddTo(stats, "log.sync_seconds");
}

}  // namespace sparsefleet
