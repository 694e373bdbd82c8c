// The optimizer of a table: one update of one row (or one stripe of a dense table).
//
// State of n weights, as consecutive arrays of n floats:
//   sgd none; momentum [buffer]; adagrad [sum]; row-wise adagrad one float;
//   decayed adagrad [moment]; rmsprop [square] [mean, if centered] [buffer, if momentum > 0];
//   adam [m] [v] step count; adamax [m] [norm] step count; ftrl [squares] [linear];
//   adadelta [square] [delta]; lars [velocity]; lamb [m] [v].
// A step count is one float, exact up to 2^24, where it stops; the correction is 1 by then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "optimizer/kernels.h"
#include "optimizer/optimizer_spec.h"

namespace sparsefleet {

// Sums of squares over a whole parameter, for the optimizers that need its norms.
struct SquareSums {
  double weights = 0.0;
  double steps = 0.0;  // lars: of gradients; lamb: of unscaled steps
};

// Thread-safe: constant after construction.
class RowOptimizer {
 public:
  // REQUIRES: the spec passed the table's Validate().
  explicit RowOptimizer(const OptimizerSpec& spec, const RowKernels& kernels = BestKernels());

  std::uint32_t arrays() const { return arrays_; }         // state arrays of n floats
  bool has_row_scalar() const { return has_row_scalar_; }  // and one float for all n
  std::size_t StateDim(std::size_t n) const { return arrays_ * n + (has_row_scalar_ ? 1 : 0); }
  void InitState(float* state, std::size_t n) const;

  // Whether Update() reads `scratch`, which then must hold n floats.
  bool needs_scratch() const { return l1_ != 0.0F || l2_ != 0.0F; }
  void Update(float* w, float* state, const float* g, std::size_t n, double lr,
              float* scratch) const;

  // Update() in two halves, for a parameter in several stripes: the first runs over all of them,
  // adding to `sums`, then the second. REQUIRES: needs_norms().
  bool needs_norms() const { return NeedsNorms(kind_); }
  void Measure(const float* w, float* state, const float* g, std::size_t n, float* scratch,
               SquareSums& sums) const;
  void UpdateMeasured(float* w, float* state, const float* g, std::size_t n, double lr,
                      float* scratch, const SquareSums& sums) const;

  const RowKernels& kernels() const { return *kernels_; }

 private:
  struct Correction {
    double first = 1.0;        // 1 - beta1^t
    double sqrt_second = 1.0;  // sqrt(1 - beta2^t)
  };
  Correction CorrectionAt(double t) const;
  // The gradient with weight decay added, in `scratch` if there is any.
  const float* Decayed(const float* g, const float* w, std::size_t n, float* scratch) const;
  bool counts_steps() const {
    return kind_ == OptimizerKind::kAdam || kind_ == OptimizerKind::kAdamw ||
           kind_ == OptimizerKind::kAdamax;
  }

  const RowKernels* kernels_;
  UpdateKernel update_;
  OptimizerKind kind_;
  KernelConstants constants_;
  std::uint32_t arrays_ = 0;
  bool has_row_scalar_ = false;
  float initial_state_ = 0.0F;  // of the first array, or of the row's one float
  float l1_ = 0.0F;
  float l2_ = 0.0F;
  double decoupled_ = 0.0;    // adamw, lars, lamb: the decay
  double coefficient_ = 0.0;  // lars
  double beta1_ = 0.0;
  double beta2_ = 0.0;
  std::vector<Correction> corrections_;  // for the first steps; pow is slow
};

}  // namespace sparsefleet
