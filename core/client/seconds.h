// Conversions between seconds and clock durations.
#pragma once

#include <algorithm>
#include <chrono>

#include "store/deadline.h"  // IWYU pragma: export

namespace sparsefleet {

// Negative and NaN become zero; no wait is longer than ten years.
inline std::chrono::steady_clock::duration ToDuration(double seconds) {
  const double bounded = seconds > 0 ? std::min(seconds, 3.2e8) : 0.0;
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(bounded));
}

inline double ToSeconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace sparsefleet
