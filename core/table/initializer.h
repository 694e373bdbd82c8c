// First values of rows: a pure function of (seed, key, column), so that they do not depend on
// arrival order, thread or number of servers.
// Format: trained models depend on it; do not change.
#pragma once

#include <cstdint>
#include <span>

#include "table/key.h"
#include "table/table_spec.h"

namespace sparsefleet {

// The u with which a standard normal variable lies below the result, inverted; 0 < u < 1.
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
  float below_end_;  // uniform: the largest float under b, where rounding would give b
};

// Uniform on [0, 1), pure in its arguments: the draw that admits a key at a step.
double AdmissionDraw(std::uint64_t seed, Key key, std::uint64_t step);

}  // namespace sparsefleet
