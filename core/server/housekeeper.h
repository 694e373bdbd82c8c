// The timer thread: calls back at deadlines and at regular ticks. Header only.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <thread>
#include <utility>

#include "sync/mutex.h"

namespace sparsefleet {

// Thread-safe.
class Housekeeper {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // `on_deadline(now)` runs at each tick and when a deadline passed to WakeBy() is reached, and
  // returns the next deadline; `on_tick(now)` runs every `interval`.
  Housekeeper(std::chrono::nanoseconds interval, std::function<TimePoint(TimePoint)> on_deadline,
              std::function<void(TimePoint)> on_tick)
      : interval_(interval),
        on_deadline_(std::move(on_deadline)),
        on_tick_(std::move(on_tick)),
        thread_([this](const std::stop_token& stop) { Work(stop); }) {}
  ~Housekeeper() { Stop(); }

  void WakeBy(TimePoint deadline) {
    {
      MutexLock lock(mutex_);
      if (deadline >= wake_at_) return;
      wake_at_ = deadline;
      woken_ = true;
    }
    changed_.notify_one();
  }

  void Stop() {
    thread_.request_stop();
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Work(const std::stop_token& stop) {
    TimePoint next_tick = std::chrono::steady_clock::now() + interval_;
    while (!stop.stop_requested()) {
      {
        // A deadline set while on_deadline_ runs lowers this again, so none is missed.
        MutexLock lock(mutex_);
        wake_at_ = TimePoint::max();
      }
      const TimePoint now = std::chrono::steady_clock::now();
      const TimePoint next = on_deadline_(now);
      if (now >= next_tick) {
        on_tick_(now);
        next_tick = now + interval_;
      }
      MutexLock lock(mutex_);
      wake_at_ = std::min({wake_at_, next, next_tick});
      woken_ = false;
      while (!stop.stop_requested() && std::chrono::steady_clock::now() < wake_at_) {
        const TimePoint until = wake_at_;  // a copy: the wait reads it without the lock
        changed_.wait_until(lock, stop, until,
                            [&]() REQUIRES(mutex_) { return std::exchange(woken_, false); });
      }
    }
  }

  const std::chrono::nanoseconds interval_;
  const std::function<TimePoint(TimePoint)> on_deadline_;
  const std::function<void(TimePoint)> on_tick_;
  Mutex mutex_;
  std::condition_variable_any changed_;
  TimePoint wake_at_ GUARDED_BY(mutex_) = TimePoint::max();
  bool woken_ GUARDED_BY(mutex_) = false;
  std::jthread thread_;  // last: it uses the members above
};

}  // namespace sparsefleet
