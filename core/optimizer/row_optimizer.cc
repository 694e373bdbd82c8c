#include "optimizer/row_optimizer.h"

#include <algorithm>
#include <cmath>

namespace sparsefleet {
namespace {

constexpr std::size_t kTabledSteps = 4096;

std::uint32_t StateArrays(const OptimizerSpec& spec) {
  switch (spec.kind) {
    case OptimizerKind::kSgd:
    case OptimizerKind::kRowwiseAdagrad:
      return 0;
    case OptimizerKind::kMomentum:
    case OptimizerKind::kAdagrad:
    case OptimizerKind::kDecayedAdagrad:
    case OptimizerKind::kLars:
      return 1;
    case OptimizerKind::kRmsprop:
    case OptimizerKind::kFluidRmsprop:
      return 1 + (spec.centered ? 1 : 0) + (spec.momentum > 0 ? 1 : 0);
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamw:
    case OptimizerKind::kAdamax:
    case OptimizerKind::kFtrl:
    case OptimizerKind::kAdadelta:
    case OptimizerKind::kFluidAdadelta:
    case OptimizerKind::kLamb:
      return 2;
  }
  return 0;
}

KernelConstants ConstantsOf(const OptimizerSpec& spec) {
  KernelConstants c;
  c.momentum = static_cast<float>(spec.momentum);
  c.beta1 = static_cast<float>(spec.beta1);
  c.one_minus_beta1 = static_cast<float>(1.0 - spec.beta1);
  c.beta2 = static_cast<float>(spec.beta2);
  c.one_minus_beta2 = static_cast<float>(1.0 - spec.beta2);
  c.epsilon = static_cast<float>(spec.epsilon);
  c.decay = static_cast<float>(spec.decay);
  c.one_minus_decay = static_cast<float>(1.0 - spec.decay);
  c.power = static_cast<float>(-spec.learning_rate_power);
  c.ftrl_l1 = static_cast<float>(spec.ftrl_l1);
  c.ftrl_l2 = static_cast<float>(spec.ftrl_l2);
  c.weight_decay = static_cast<float>(spec.l2);
  c.nesterov = spec.nesterov;
  c.centered = spec.centered;
  c.has_momentum = spec.momentum > 0;
  return c;
}

// Whether l2 is not simply added to the gradient.
bool HasOwnDecay(OptimizerKind kind) { return kind == OptimizerKind::kAdamw || NeedsNorms(kind); }

bool StartsAtAccumulator(OptimizerKind kind) {
  return kind == OptimizerKind::kAdagrad || kind == OptimizerKind::kRowwiseAdagrad ||
         kind == OptimizerKind::kFtrl;
}

}  // namespace

RowOptimizer::RowOptimizer(const OptimizerSpec& spec, const RowKernels& kernels)
    : kernels_(&kernels),
      update_(kernels.update[static_cast<std::size_t>(spec.kind)]),
      kind_(spec.kind),
      constants_(ConstantsOf(spec)),
      arrays_(StateArrays(spec)),
      has_row_scalar_(counts_steps() || spec.kind == OptimizerKind::kRowwiseAdagrad),
      l1_(static_cast<float>(spec.l1)),
      l2_(HasOwnDecay(spec.kind) ? 0.0F : static_cast<float>(spec.l2)),
      decoupled_(HasOwnDecay(spec.kind) ? spec.l2 : 0.0),
      coefficient_(spec.decay),
      beta1_(spec.beta1),
      beta2_(spec.beta2) {
  if (StartsAtAccumulator(kind_)) initial_state_ = static_cast<float>(spec.initial_accumulator);
  if (!counts_steps()) return;
  std::vector<Correction> tabled(kTabledSteps);
  for (std::size_t t = 1; t < kTabledSteps; ++t) tabled[t] = CorrectionAt(static_cast<double>(t));
  corrections_ = std::move(tabled);
}

void RowOptimizer::InitState(float* state, std::size_t n) const {
  const std::size_t size = StateDim(n);
  std::fill(state, state + size, 0.0F);
  const std::size_t first = kind_ == OptimizerKind::kRowwiseAdagrad ? 1 : std::min(n, size);
  if (initial_state_ != 0.0F) std::fill(state, state + first, initial_state_);
}

RowOptimizer::Correction RowOptimizer::CorrectionAt(double t) const {
  if (t < static_cast<double>(corrections_.size()))
    return corrections_[static_cast<std::size_t>(t)];
  return {1.0 - std::pow(beta1_, t), std::sqrt(1.0 - std::pow(beta2_, t))};
}

const float* RowOptimizer::Decayed(const float* g, const float* w, std::size_t n,
                                   float* scratch) const {
  if (!needs_scratch()) return g;
  kernels_->decay_weights(scratch, g, w, n, l1_, l2_);
  return scratch;
}

void RowOptimizer::Update(float* w, float* state, const float* g, std::size_t n, double lr,
                          float* scratch) const {
  if (needs_norms()) {
    SquareSums sums;
    Measure(w, state, g, n, scratch, sums);
    return UpdateMeasured(w, state, g, n, lr, scratch, sums);
  }
  g = Decayed(g, w, n, scratch);
  StepSize step{static_cast<float>(lr)};
  if (counts_steps()) {
    float& count = state[arrays_ * n];
    // An imported count may be any number; the correction would divide by zero below step 1.
    count = count >= 0.0F ? count + 1.0F : 1.0F;
    const Correction correction = CorrectionAt(count);
    step = {static_cast<float>(lr / correction.first), static_cast<float>(correction.sqrt_second),
            static_cast<float>(1.0 - lr * decoupled_)};
  }
  update_(w, state, g, n, step, constants_);
}

void RowOptimizer::Measure(const float* w, float* state, const float* g, std::size_t n,
                           float* scratch, SquareSums& sums) const {
  g = Decayed(g, w, n, scratch);
  sums.weights += kernels_->sum_squares(w, n);
  sums.steps += kind_ == OptimizerKind::kLamb ? kernels_->lamb_moments(w, state, g, n, constants_)
                                              : kernels_->sum_squares(g, n);
}

void RowOptimizer::UpdateMeasured(float* w, float* state, const float* g, std::size_t n, double lr,
                                  float* scratch, const SquareSums& sums) const {
  g = Decayed(g, w, n, scratch);
  // Without a weight or a step there is no ratio: the rate is then used as it is.
  if (sums.weights > 0.0 && sums.steps > 0.0) {
    const double length = std::sqrt(sums.weights);
    const double step = std::sqrt(sums.steps);
    lr *= kind_ == OptimizerKind::kLamb ? length / step
                                        : coefficient_ * length / (step + decoupled_ * length);
  }
  update_(w, state, g, n, StepSize{static_cast<float>(lr)}, constants_);
}

}  // namespace sparsefleet
