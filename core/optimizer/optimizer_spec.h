// The optimizer of a table as a user declares it. Header only.
#pragma once

#include <cstdint>

namespace sparsefleet {

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
};

// One struct for all optimizers; a kind reads only the fields that name it.
// Doubles, as in torch: float(1 - 0.999) is off by 5e-5.
struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::kSgd;
  double learning_rate = 0.01;
  double momentum = 0.0;              // momentum, rmsprop
  bool nesterov = false;              // momentum
  double beta1 = 0.9;                 // adam, adamw, adamax
  double beta2 = 0.999;               // adam, adamw, adamax
  double epsilon = 1e-8;              // all but sgd, momentum, ftrl
  double decay = 0.95;                // decayed adagrad, rmsprop (torch: alpha)
  bool centered = false;              // rmsprop
  double initial_accumulator = 0.0;   // adagrad, row-wise adagrad, ftrl
  double learning_rate_power = -0.5;  // ftrl
  double ftrl_l1 = 0.0;               // ftrl: part of the proximal step, not weight decay
  double ftrl_l2 = 0.0;
  double l1 = 0.0;  // weight decay: gradient += l1 * sign(w) + l2 * w
  double l2 = 0.0;  // adamw: decoupled, w *= 1 - learning_rate * l2 before the step
  bool operator==(const OptimizerSpec&) const = default;
};

}  // namespace sparsefleet
