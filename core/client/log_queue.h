// Log lines on their way to the user's log function, which may take as long as it likes.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "status/status.h"

namespace sparsefleet {

// Calls the function on a thread of its own: those who log never wait for it. Thread-safe.
class LogQueue {
 public:
  using Function = std::function<void(int severity, const std::string& message)>;
  static constexpr std::size_t kMaxLines = 1000;  // then the oldest are dropped, and counted

  // kIo if the system has no thread left. `log` may be empty.
  static Result<std::unique_ptr<LogQueue>> Start(Function log);
  // Hands out what is left first.
  ~LogQueue();

  void Add(int severity, std::string message);

 private:
  explicit LogQueue(Function log) : log_(std::move(log)) {}
  void Run();

  const Function log_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::size_t num_dropped_ = 0;
  std::deque<std::pair<int, std::string>> lines_;
  std::thread thread_;
};

}  // namespace sparsefleet
