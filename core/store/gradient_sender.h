// Pushes the gradients of training threads in the background.
//
// Training threads Put() the gradients of a mini-batch into a bounded queue. The sender's thread
// takes a few at a time, merges and pushes them, and occasionally fetches the dense values.
//
// Thread-safe. A mini-batch is *open* from Put() until its push has been applied and everything
// that follows the push has finished.
//
// Invariants:
// 1. A mini-batch is pushed at most once, with the marks of its data, in the order of Put(), and
// exactly once if no call fails.
// 2. After the first failure nothing more is pushed, and every call returns that failure.
// 3. The sender's thread never frees the memory of a contribution: TakeSpent() hands it back, since
//    freeing it may need a lock that the caller holds (for Python arrays, the GIL).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "status/status.h"
#include "store/gradient_merge.h"
#include "store/store.h"
#include "sync/mutex.h"

namespace sparsefleet {

// A dense table, and the array in the caller's memory that its values are fetched into.
struct DenseTarget {
  std::string table;
  std::span<float> values;
};

struct SenderOptions {
  std::size_t max_merge = 1;   // mini-batches in one push
  std::size_t queue_size = 1;  // mini-batches that wait; when the queue is full, Put() blocks
  // How long the sender waits for another mini-batch while it has fewer than max_merge. It does not
  // wait while a caller waits for the queue to empty.
  double linger_s = 0;
  // Put() blocks until at most this many mini-batches are open.
  std::optional<std::size_t> max_open = std::nullopt;
  TableNames summed = {};  // tables whose gradients are summed; those of all others are averaged
  // Fetched after a push once more than refresh_after mini-batches were pushed since the last
  // fetch. A push returns the values of its own tables.
  std::vector<DenseTarget> dense = {};
  std::size_t refresh_after = 0;
  // Called on the sender's thread after each push, with the number of mini-batches in it.
  std::function<Status(std::size_t)> on_pushed = {};
  double wait_s = 600;    // longest wait of a caller, and of the sender for slower workers
  double timeout_s = 30;  // per request to the store
};

struct SenderStats {
  std::uint64_t pushes = 0;
  std::uint64_t merged = 0;  // mini-batches in those pushes
  double push_s = 0;         // merging and pushing
  double pull_s = 0;         // fetching dense values
  std::size_t open = 0;
};

class GradientSender {
 public:
  using StepCounter = std::atomic<std::uint64_t>;

  // `store` may be closed at any time: pushes then fail. `step` numbers the pushes of the store,
  // including those made by others.
  GradientSender(std::weak_ptr<Store> store, std::shared_ptr<StepCounter> step,
                 SenderOptions options);
  GradientSender(const GradientSender&) = delete;
  GradientSender& operator=(const GradientSender&) = delete;
  ~GradientSender();  // calls Stop()

  struct PutResult {
    double waited_s = 0;
    // Earlier mini-batches of this sender that the dense values do not reflect yet.
    std::size_t staleness = 0;
  };
  // Queues the gradients of one mini-batch. kDeadlineExceeded after wait_s, kInvalidArgument after
  // End(). The first call starts the sender's thread.
  Result<PutResult> Put(Contribution gradients);

  // Returns once all mini-batches that were open when it was called have been applied. It does not
  // wait for those that other threads queue later.
  Status WaitEmpty();
  // WaitEmpty(), then fetches the values of all dense targets.
  Status Flush();

  // From now on the sender reports to the servers after each push how many mini-batches this member
  // has pushed since this call, in addition to `applied`, and waits until no other member is more
  // than `ahead` behind. REQUIRES: no mini-batch is open.
  void BoundStaleness(const RoundMember& member, std::uint64_t ahead, std::uint64_t applied = 0);

  // Makes every pending and later call return `status`, unless another failure came first. Nothing
  // more is pushed. failure_cause() returns `cause`.
  void Fail(const Status& status, std::shared_ptr<const void> cause = nullptr);
  // The cause passed with the failure that calls return; null if there is none.
  std::shared_ptr<const void> failure_cause() const;
  void DropFailureCause();
  // Pushes what is queued, unless something has failed, and ends the thread; waits up to wait_s.
  // Idempotent.
  void End();
  // Drops what is queued and ends the thread; waits for a push in progress. Later calls fail with
  // kShuttingDown. Idempotent. REQUIRES: !IsOwnThread().
  void Stop();
  // Whether the caller is running on the sender's thread, in on_pushed.
  bool IsOwnThread() const;

  SenderStats stats() const;
  // Gradient rows that tables have skipped as non-finite since the last call, by the tables of the
  // push ("ads, net").
  std::map<std::string, std::uint64_t> TakeRejected();
  // The memory of contributions that have been pushed.
  std::vector<std::shared_ptr<const void>> TakeSpent();

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  // The workers that must not drift apart.
  struct ClockGroup {
    std::string group;
    RoundMember member;  // without its group
    std::uint64_t ahead = 0;
    std::uint64_t applied = 0;
  };

  void Run();
  // The next mini-batches, at least one; empty when the thread should end.
  std::vector<Contribution> Take();
  Status Send(std::span<const Contribution> batches, bool is_refresh_due);
  Status Push(Store& store, std::span<const Contribution> batches, bool takes_values,
              TableNames& fetched);
  Status WaitForSlowWorkers(Store& store, std::size_t count);
  // Fetches the dense values, except those of the tables in `fetched`.
  Status FetchDense(Store& store, const TableNames& fetched);
  Result<std::shared_ptr<Store>> OpenStore() const;
  bool HasFailed() const;

  bool Linger() REQUIRES(mutex_);
  enum class WaitEnd : std::uint8_t { kReady, kLate, kInterrupted };
  template <typename Ready>
  WaitEnd WaitFor(TimePoint deadline, Ready ready) REQUIRES(mutex_);
  // WaitFor() with wait_s as the limit; returns the failure if there is one. A timeout names
  // `what`.
  template <typename Ready>
  Status WaitUntil(Ready ready, const char* what) REQUIRES(mutex_);
  void FailLocked(const Status& status, std::shared_ptr<const void> cause) REQUIRES(mutex_);

  const std::weak_ptr<Store> store_;
  const std::shared_ptr<StepCounter> step_;
  const SenderOptions options_;
  GradientMerge merge_;  // the sender's thread only
  // Held while dense targets are written.
  Mutex dense_mutex_ ACQUIRED_BEFORE(mutex_);

  mutable Mutex mutex_;
  CondVar work_;      // for the sender's thread: queued, hurried, closed, failed
  CondVar progress_;  // for callers: room, nothing open, ended, failed
  std::deque<Contribution> queue_ GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<const void>> spent_ GUARDED_BY(mutex_);
  std::map<std::string, std::uint64_t> rejected_ GUARDED_BY(mutex_);
  std::optional<ClockGroup> clock_group_ GUARDED_BY(mutex_);
  SenderStats stats_ GUARDED_BY(mutex_);
  std::uint64_t applied_ GUARDED_BY(mutex_) = 0;  // mini-batches, which are applied in queue order
  std::size_t since_refresh_ GUARDED_BY(mutex_) =
      0;  // mini-batches pushed since dense values were fetched
  std::size_t hurried_ GUARDED_BY(mutex_) = 0;  // calls in WaitEmpty()
  bool closed_ GUARDED_BY(mutex_) = false;
  bool running_ GUARDED_BY(mutex_) = false;
  Status failure_ GUARDED_BY(mutex_);
  std::shared_ptr<const void> failure_cause_ GUARDED_BY(mutex_);
  std::thread thread_ GUARDED_BY(mutex_);
};

}  // namespace sparsefleet
