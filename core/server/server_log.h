// The server's log, with a rate limit. Header only.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "sync/mutex.h"

namespace sparsefleet {

inline constexpr int kInfo = 0;
inline constexpr int kWarning = 1;
inline constexpr int kError = 2;

// Thread-safe.
class ServerLog {
 public:
  using Sink = std::function<void(int severity, const std::string& message)>;
  explicit ServerLog(Sink sink) : sink_(std::move(sink)) {}

  void Write(int severity, const std::string& message) const {
    if (sink_) sink_(severity, message);
  }

  // For events that a peer can cause at will: at most one line per second, which says how many were
  // skipped before it.
  void WriteRateLimited(int severity, const std::string& message) {
    std::uint64_t left_out = 0;
    {
      MutexLock lock(mutex_);
      const auto now = std::chrono::steady_clock::now();
      if (now < next_) {
        ++left_out_;
        return;
      }
      next_ = now + std::chrono::seconds(1);
      left_out = std::exchange(left_out_, 0);
    }
    Write(severity, left_out == 0
                        ? message
                        : message + " (" + std::to_string(left_out) + " similar lines skipped)");
  }

 private:
  const Sink sink_;
  Mutex mutex_;
  std::chrono::steady_clock::time_point next_ GUARDED_BY(mutex_){};
  std::uint64_t left_out_ GUARDED_BY(mutex_) = 0;
};

}  // namespace sparsefleet
