// A server's view of a client, across all its connections and for a while after the last.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "server/applied_data.h"
#include "server/reply_memory.h"
#include "status/status.h"
#include "store/coordinator.h"
#include "sync/mutex.h"
#include "table/sparse_table.h"

namespace sparsefleet {

// A client's open cut; `mutex` because two connections may request its next rows.
struct SessionCut {
  SessionCut(TableCut opened, std::size_t bytes) : cut(std::move(opened)), row_bytes(bytes) {}
  Mutex mutex;
  TableCut cut GUARDED_BY(mutex);
  std::size_t row_bytes;  // one row in a reply
};

// Thread-safe.
class Session {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  static constexpr std::size_t kMaxCuts = 64;

  // `number` is unique among the sessions of this server.
  Session(std::uint64_t id, std::uint64_t number, std::string name, TimePoint now);

  std::uint64_t id() const { return id_; }
  std::uint64_t number() const { return number_; }
  const std::string& name() const { return name_; }
  Coordinator::Owner owner() const { return {id_, name_, number_}; }
  TimePoint began() const { return began_; }
  ReplyMemory& replies(Window window) { return replies_[static_cast<std::size_t>(window)]; }
  ReplyMemory& replies(MessageType type) {
    return replies_[static_cast<std::size_t>(WindowOf(type))];
  }

  // "client 'worker-1' (127.0.0.1:51234)"
  std::string Describe() const;
  void SetAddress(const std::string& address);

  // Called for every frame from the client.
  void Touch(TimePoint now) { last_seen_.store(now, std::memory_order_relaxed); }
  TimePoint last_seen() const { return last_seen_.load(std::memory_order_relaxed); }

  // A launcher reports that it has restarted the process of this client, which is not back yet.
  void ExpectBack(TimePoint now) {
    Touch(now);
    expected_.fetch_add(1, std::memory_order_relaxed);
  }
  std::uint64_t times_expected() const { return expected_.load(std::memory_order_relaxed); }

  // Why it is lost: "silent for 61 s, and ...".
  std::string DescribeLoss(TimePoint now, double peer_timeout_s) const;

  // How long it may be silent before it is lost, if that is longer than the peer timeout: another
  // process may take its client's place.
  void SetGrace(double seconds) { grace_s_.store(seconds, std::memory_order_relaxed); }
  double grace_s() const { return grace_s_.load(std::memory_order_relaxed); }

  // The id of the cut, or kTooLarge if the client has kMaxCuts open.
  Result<std::uint64_t> AddCut(TableCut cut, std::size_t row_bytes);
  Result<std::shared_ptr<SessionCut>> FindCut(std::uint64_t id) const;
  Status CloseCut(std::uint64_t id);

  // See AppliedData.
  AppliedData::State Judge(std::span<const DataMark> marks) const;
  void Remember(std::span<const DataMark> marks);
  std::vector<DataMark> Marks() const;

  // The watched tables and the keys to be returned; for snapshots.
  std::map<std::string, std::vector<Key>> Watches() const;

  // The keys that have changed in the table since the first call.
  std::shared_ptr<ChangeCursor> Watch(SparseTable& table);
  // kNotFound if the table's changes are not watched.
  Result<std::shared_ptr<ChangeCursor>> FindWatch(std::string_view table) const;

  // Closes the cuts and ends the watches.
  void DropHoldings();

 private:
  const std::uint64_t id_;
  const std::uint64_t number_;
  const std::string name_;
  const TimePoint began_;
  std::atomic<TimePoint> last_seen_;
  std::atomic<double> grace_s_{0};
  std::atomic<std::uint64_t> expected_{0};
  std::array<ReplyMemory, kNumWindows> replies_;
  mutable Mutex mutex_;
  std::string address_ GUARDED_BY(mutex_);
  AppliedData applied_ GUARDED_BY(mutex_);
  std::uint64_t next_cut_ GUARDED_BY(mutex_) = 1;
  std::map<std::uint64_t, std::shared_ptr<SessionCut>> cuts_ GUARDED_BY(mutex_);
  std::map<std::string, std::shared_ptr<ChangeCursor>, std::less<>> watches_
      GUARDED_BY(mutex_);  // by table
};

}  // namespace sparsefleet
