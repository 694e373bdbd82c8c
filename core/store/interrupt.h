// Lets a caller end its own blocking calls early.
#pragma once

#include <chrono>
#include <functional>
#include <utility>

namespace sparsefleet {

// While it lives, blocking store calls of this thread call `check`, on this thread, about every
// kInterruptInterval and after a signal, to ask whether to give up.
class ScopedInterrupt {
 public:
  explicit ScopedInterrupt(std::function<bool()> check)
      : check_(std::move(check)), outer_(std::exchange(current_, this)) {}
  ScopedInterrupt(const ScopedInterrupt&) = delete;
  ScopedInterrupt& operator=(const ScopedInterrupt&) = delete;
  ~ScopedInterrupt() { current_ = outer_; }

  static bool is_set() { return current_ != nullptr; }
  static bool IsDue() { return current_ != nullptr && current_->check_(); }

 private:
  static inline thread_local ScopedInterrupt* current_ = nullptr;
  const std::function<bool()> check_;
  ScopedInterrupt* const outer_;
};

inline constexpr auto kInterruptInterval = std::chrono::milliseconds(100);

}  // namespace sparsefleet
