// Initial values of rows: a pure function of (seed, key, column), so that they do not depend on
// arrival order, thread or number of servers.
// Format: trained models depend on it; do not change.
#pragma once

#include <cstdint>
#include <span>

#include "key/key.h"
#include "table/table_spec.h"

namespace sparsefleet {

// The quantile function of the standard normal distribution; 0 < u < 1.
// Wichura, Algorithm AS 241 (PPND16), relative accuracy 1e-16.
double NormalQuantile(double u);

// Thread-safe: constant after construction.
class Initializer {
 public:
  // REQUIRES: the spec passed the table's Validate().
  Initializer(const InitializerSpec& spec, std::uint64_t seed);

  void Fill(Key key, std::span<float> row) const;

 private:
  InitializerSpec spec_;
  std::uint64_t mixed_seed_;
  float below_end_;  // uniform: the largest float below b, in case rounding gives b
};

// Uniform on [0, 1), pure in its arguments: decides whether a key is admitted at a step.
double AdmissionDraw(std::uint64_t seed, Key key, std::uint64_t step);

}  // namespace sparsefleet
