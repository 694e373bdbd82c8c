// Pins the time at which a thread's changes to tables happen, because a logged change must produce
// the same rows when it is replayed. Header only.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

namespace sparsefleet {

class PinnedSeconds {
 public:
  explicit PinnedSeconds(std::uint32_t seconds) : before_(std::exchange(pinned_, seconds)) {}
  ~PinnedSeconds() { pinned_ = before_; }
  PinnedSeconds(const PinnedSeconds&) = delete;

  // The thread's pinned time, or else the system's, in seconds since 1970.
  static std::uint32_t Now() {
    if (pinned_) return *pinned_;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return static_cast<std::uint32_t>(
        std::chrono::duration_cast<std::chrono::seconds>(now).count());
  }

 private:
  static inline thread_local std::optional<std::uint32_t> pinned_;
  const std::optional<std::uint32_t> before_;
};

}  // namespace sparsefleet
