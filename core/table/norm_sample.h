// Estimates the mean square norm of the rows that pass through, from a sample of them. Header only.
#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace sparsefleet {

// Thread-safe. Looks at one of every kEvery rows, so that it costs little compared with handling
// the rows.
class NormSample {
 public:
  static constexpr std::size_t kEvery = 32;

  // `rows` has num_rows x dim floats. Rows that are not finite are left out.
  void Look(const float* rows, std::size_t num_rows, std::size_t dim) {
    // Starts at a different row each time, so that short batches are sampled too.
    const std::size_t seen = seen_.fetch_add(num_rows, std::memory_order_relaxed);
    double squares = 0.0;
    std::uint64_t count = 0;
    for (std::size_t row = (kEvery - seen % kEvery) % kEvery; row < num_rows; row += kEvery) {
      double of_row = 0.0;
      for (std::size_t i = 0; i < dim; ++i) {
        of_row += static_cast<double>(rows[row * dim + i]) * rows[row * dim + i];
      }
      if (!std::isfinite(of_row)) continue;
      squares += of_row;
      ++count;
    }
    if (count == 0) return;
    squares_.fetch_add(squares, std::memory_order_relaxed);
    count_.fetch_add(count, std::memory_order_relaxed);
  }

  double squares() const {
    return squares_.load(std::memory_order_relaxed);
  }  // sum over the sample
  std::uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> seen_{0};
  std::atomic<double> squares_{0};
  std::atomic<std::uint64_t> count_{0};
};

}  // namespace sparsefleet
