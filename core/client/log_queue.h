// Queues log lines for the user's log function, which may block.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "status/status.h"
#include "sync/mutex.h"

namespace sparsefleet {

// Calls the function on a separate thread, so that logging never blocks. Thread-safe.
class LogQueue {
 public:
  using Function = std::function<void(int severity, const std::string& message)>;
  static constexpr std::size_t kMaxLines = 1000;  // beyond this the oldest are dropped and counted

  // kIo if the system is out of threads. `log` may be empty.
  static Result<std::unique_ptr<LogQueue>> Start(Function log);
  // Delivers the remaining lines first.
  ~LogQueue();

  void Add(int severity, std::string message);

 private:
  explicit LogQueue(Function log) : log_(std::move(log)) {}
  void Run();

  const Function log_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::size_t num_dropped_ GUARDED_BY(mutex_) = 0;
  std::deque<std::pair<int, std::string>> lines_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace sparsefleet
