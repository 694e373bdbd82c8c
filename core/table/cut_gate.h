// Admits many writers at once, or one cut alone.
#pragma once

#include <mutex>
#include <shared_mutex>

namespace sparsefleet {

// Thread-safe. A cut waits for the writers inside but not for later ones: those queue behind it at
// the turnstile, since a shared_mutex by itself may let readers starve a writer.
class CutGate {
 public:
  std::shared_lock<std::shared_mutex> EnterWriter() {
    const std::lock_guard turn(turnstile_);
    return std::shared_lock(mutex_);
  }
  std::unique_lock<std::shared_mutex> EnterCut() {
    const std::lock_guard turn(turnstile_);
    return std::unique_lock(mutex_);
  }

 private:
  std::mutex turnstile_;
  std::shared_mutex mutex_;
};

}  // namespace sparsefleet
