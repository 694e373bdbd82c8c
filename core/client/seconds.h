// Seconds as users give and read them.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

namespace sparsefleet {

// Nonsense (negative, not a number) is zero; no wait is longer than ten years.
inline std::chrono::steady_clock::duration ToDuration(double seconds) {
  const double bounded = seconds > 0 ? std::min(seconds, 3.2e8) : 0.0;
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(bounded));
}

inline double ToSeconds(std::chrono::steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// "30 s", "0.25 s"
inline std::string ShowSeconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g s", seconds);
  return text;
}

}  // namespace sparsefleet
