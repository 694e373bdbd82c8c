// Timeouts in seconds, as callers give them, to moments in time. Header only.
#pragma once

#include <algorithm>
#include <chrono>

namespace sparsefleet {

// The moment `timeout_s` from now; negative or NaN: now. Capped at ten years, where adding
// it to the clock would overflow otherwise.
inline std::chrono::steady_clock::time_point DeadlineAfter(double timeout_s) {
  constexpr double kMaxSeconds = 3.2e8;
  const double seconds = timeout_s > 0 ? std::min(timeout_s, kMaxSeconds) : 0.0;
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(seconds));
}

}  // namespace sparsefleet
