// Counts durations by size, as Prometheus' histograms do. Header only.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>

namespace sparsefleet {

// Thread-safe: an observation is two relaxed additions.
class DurationHistogram {
 public:
  // Upper bounds in seconds, inclusive; one more bucket takes the rest.
  static constexpr std::array<double, 17> kBounds = {50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3,
                                                     5e-3,  10e-3,  20e-3,  50e-3,  0.1,  0.2,
                                                     0.5,   1.0,    2.0,    5.0,    10.0};

  void Observe(double seconds) {
    std::size_t bucket = 0;
    while (bucket < kBounds.size() && seconds > kBounds[bucket]) ++bucket;
    counts_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_s_.fetch_add(seconds, std::memory_order_relaxed);
  }

  // Adds "<name>.le.<bound>" with the number of observations up to each bound, "<name>.le.inf" with
  // all of them, and "<name>.sum". Adds nothing before the first observation.
  void AddTo(std::map<std::string, double>& stats, const std::string& name) const {
    std::array<std::uint64_t, kBounds.size() + 1> counts;
    std::uint64_t total = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      total += counts[i] = counts_[i].load(std::memory_order_relaxed);
    }
    if (total == 0) return;
    std::uint64_t below = 0;
    for (std::size_t i = 0; i < kBounds.size(); ++i) {
      char bound[32];
      std::snprintf(bound, sizeof(bound), "%g", kBounds[i]);
      stats[name + ".le." + bound] = static_cast<double>(below += counts[i]);
    }
    stats[name + ".le.inf"] = static_cast<double>(total);
    stats[name + ".sum"] = sum_s_.load(std::memory_order_relaxed);
  }

 private:
  std::array<std::atomic<std::uint64_t>, kBounds.size() + 1> counts_{};
  std::atomic<double> sum_s_{0};
};

}  // namespace sparsefleet
