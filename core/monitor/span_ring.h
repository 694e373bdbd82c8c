// The last requests of a server with their times, for profiles. Header only.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "sync/mutex.h"

namespace sparsefleet {

struct Span {
  std::int64_t begin_ns = 0;  // since 1970
  std::int64_t duration_ns = 0;
  std::uint32_t type = 0;    // what the owner of the ring counts by
  std::uint32_t thread = 0;  // numbered in the order in which threads first recorded
};

// Thread-safe. Costs one relaxed load per request while it is off.
class SpanRing {
 public:
  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }

  // Forgets what it has and keeps the next `capacity` spans; when it is full, it drops new ones.
  void Begin(std::size_t capacity) {
    const MutexLock lock(mutex_);
    spans_.clear();
    spans_.reserve(capacity);
    capacity_ = capacity;
    is_on_.store(capacity > 0, std::memory_order_relaxed);
  }

  // Turns it off, and returns what it has.
  std::vector<Span> Take() {
    const MutexLock lock(mutex_);
    is_on_.store(false, std::memory_order_relaxed);
    return std::exchange(spans_, {});
  }

  void Record(std::uint32_t type, std::chrono::steady_clock::duration duration) {
    using std::chrono::nanoseconds;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    Span span;
    span.duration_ns = std::chrono::duration_cast<nanoseconds>(duration).count();
    span.begin_ns = std::chrono::duration_cast<nanoseconds>(now).count() - span.duration_ns;
    span.type = type;
    span.thread = ThisThread();
    const MutexLock lock(mutex_);
    if (spans_.size() < capacity_) spans_.push_back(span);
  }

 private:
  static std::uint32_t ThisThread() {
    static std::atomic<std::uint32_t> next{0};
    thread_local const std::uint32_t mine = next.fetch_add(1, std::memory_order_relaxed);
    return mine;
  }

  std::atomic<bool> is_on_{false};
  Mutex mutex_;
  std::size_t capacity_ GUARDED_BY(mutex_) = 0;
  std::vector<Span> spans_ GUARDED_BY(mutex_);
};

}  // namespace sparsefleet
