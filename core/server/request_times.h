// How long requests take, and how many threads are busy with them. Header only.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "monitor/histogram.h"
#include "monitor/span_ring.h"
#include "store/store.h"
#include "transport/frame.h"

namespace sparsefleet {

// Thread-safe.
class RequestTimes {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Counts the calling thread as busy while it exists.
  class Busy {
   public:
    explicit Busy(RequestTimes& times) : times_(times) {
      times_.busy_.fetch_add(1, std::memory_order_relaxed);
    }
    ~Busy() { times_.busy_.fetch_sub(1, std::memory_order_relaxed); }
    Busy(const Busy&) = delete;
    Busy& operator=(const Busy&) = delete;

   private:
    RequestTimes& times_;
  };

  // The reply to a request that arrived at `begun` has been handed to its connection.
  void Record(MessageType type, TimePoint begun) {
    const auto duration = std::chrono::steady_clock::now() - begun;
    KindOf(type).Observe(std::chrono::duration<double>(duration).count());
    if (spans.is_on()) spans.Record(static_cast<std::uint32_t>(type), duration);
  }

  void AddTo(StatMap& stats) const {
    stats["server.busy_threads"] = static_cast<double>(busy_.load(std::memory_order_relaxed));
    for (std::size_t kind = 0; kind < kinds_.size(); ++kind) {
      kinds_[kind].AddTo(stats, std::string("server.request_seconds.") + kNames[kind]);
    }
  }

  SpanRing spans;

 private:
  static constexpr std::array<const char*, 4> kNames = {"pull", "push", "push_round", "other"};

  DurationHistogram& KindOf(MessageType type) {
    switch (type) {
      case MessageType::kPull:
        return kinds_[0];
      case MessageType::kPush:
        return kinds_[1];
      case MessageType::kPushRound:
        return kinds_[2];
      default:
        return kinds_[3];
    }
  }

  std::array<DurationHistogram, kNames.size()> kinds_;
  std::atomic<std::int64_t> busy_{0};
};

}  // namespace sparsefleet
