// Calls back once records are durable: many callers share one sync.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <stop_token>
#include <thread>

#include "status/status.h"

namespace sparsefleet {

// Thread-safe.
class GroupCommit {
 public:
  // `sync` makes everything appended before its call durable and returns the number of the first
  // record that may not be; it runs on a separate thread. After its first error nothing becomes
  // durable any more: `on_failure` is called once, and pending callbacks are never called.
  GroupCommit(std::function<Result<std::uint64_t>()> sync,
              std::function<void(const Status&)> on_failure);
  ~GroupCommit();  // pending callbacks are not called

  // Calls `done` once all records below `end` are durable: immediately, or on the syncing thread.
  void When(std::uint64_t end, std::function<void()> done);
  std::uint64_t durable_end() const;  // all records below this are durable
  std::size_t num_waiting() const;
  // Returns when no callback is pending, or after an error.
  void Drain();
  // Ends the thread: pending callbacks are not called, and none runs any more. Not thread-safe.
  void Stop();

 private:
  void Work(const std::stop_token& stop);

  const std::function<Result<std::uint64_t>()> sync_;
  const std::function<void(const Status&)> on_failure_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::condition_variable drained_;
  std::uint64_t durable_end_ = 0;
  bool has_failed_ = false;
  bool is_calling_ = false;
  std::multimap<std::uint64_t, std::function<void()>> waiting_;  // by end
  std::jthread thread_;                                          // last: it uses the members above
};

}  // namespace sparsefleet
