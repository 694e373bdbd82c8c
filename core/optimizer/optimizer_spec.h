// The optimizer of a table as a user declares it. Header only.
#pragma once

#include <cstdint>

namespace sparsefleet {

// Format: the numbers are on the wire; add at the end.
enum class OptimizerKind : std::uint8_t {
  kSgd = 0,
  kMomentum,
  kAdagrad,
  kRowwiseAdagrad,
  kDecayedAdagrad,
  kRmsprop,
  kAdam,
  kAdamax,
  kFtrl,
  kAdamw,
  kAdadelta,
  kFluidAdadelta,
  kFluidRmsprop,
  kLars,
  kLamb,
};

inline constexpr OptimizerKind kLastOptimizer = OptimizerKind::kLamb;

// Whether a step is scaled by norms of the whole parameter, which then must be in one place.
inline constexpr bool NeedsNorms(OptimizerKind kind) {
  return kind == OptimizerKind::kLars || kind == OptimizerKind::kLamb;
}

// One struct for all optimizers; a kind reads only the fields that name it.
// Doubles, as in torch: float(1 - 0.999) is off by 5e-5.
struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::kSgd;
  double learning_rate = 0.01;
  double momentum = 0.0;              // momentum, both kinds of rmsprop, lars
  bool nesterov = false;              // momentum
  double beta1 = 0.9;                 // adam, adamw, adamax, lamb
  double beta2 = 0.999;               // adam, adamw, adamax, lamb
  double epsilon = 1e-8;              // all but sgd, momentum, ftrl, lars
  double decay = 0.95;                // decayed adagrad, rmsprop (torch: alpha), adadelta (rho);
                                      // lars: its coefficient
  bool centered = false;              // both kinds of rmsprop
  double initial_accumulator = 0.0;   // adagrad, row-wise adagrad, ftrl
  double learning_rate_power = -0.5;  // ftrl
  double ftrl_l1 = 0.0;               // ftrl: part of the proximal step, not weight decay
  double ftrl_l2 = 0.0;
  double l1 = 0.0;  // weight decay: gradient += l1 * sign(w) + l2 * w
  double l2 = 0.0;  // adamw: decoupled, w *= 1 - learning_rate * l2 before the step;
                    // lars, lamb: the decay within their formula
  bool operator==(const OptimizerSpec&) const = default;
};

}  // namespace sparsefleet
