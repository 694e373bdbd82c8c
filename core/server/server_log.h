// The server's log lines, kept from flooding. Header only.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>

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

  // For what a peer can cause at will: at most one line a second, which tells how many
  // were left out before it.
  void WriteSeldom(int severity, const std::string& message) {
    std::uint64_t left_out = 0;
    {
      std::lock_guard lock(mutex_);
      const auto now = std::chrono::steady_clock::now();
      if (now < next_) {
        ++left_out_;
        return;
      }
      next_ = now + std::chrono::seconds(1);
      left_out = std::exchange(left_out_, 0);
    }
    Write(severity, left_out == 0 ? message
                                  : message + " (and " + std::to_string(left_out) +
                                        " lines like it left out)");
  }

 private:
  const Sink sink_;
  std::mutex mutex_;
  std::chrono::steady_clock::time_point next_{};
  std::uint64_t left_out_ = 0;
};

}  // namespace sparsefleet
