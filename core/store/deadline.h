// Converts timeouts in seconds to deadlines and to text. Header only.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

namespace sparsefleet {

// The time `timeout_s` from now; now if negative or NaN. Capped at ten years, so that adding it to
// the clock does not overflow.
inline std::chrono::steady_clock::time_point DeadlineAfter(double timeout_s) {
  constexpr double kMaxSeconds = 3.2e8;
  const double seconds = timeout_s > 0 ? std::min(timeout_s, kMaxSeconds) : 0.0;
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(seconds));
}

// "30 s", "0.25 s"
inline std::string ShowSeconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g s", seconds);
  return text;
}

}  // namespace sparsefleet
