// The inner loops of the optimizers, compiled once per instruction set.
//
// Every set gives the same bits: no contraction, no reordered sums. This header is compiled
// with special instruction flags, so it includes nothing that emits shared inline code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparsefleet {

// Hyperparameters as the loops read them, rounded from double like torch does.
struct KernelConstants {
  float momentum = 0;
  float beta1 = 0;
  float one_minus_beta1 = 0;
  float beta2 = 0;
  float one_minus_beta2 = 0;
  float epsilon = 0;
  float decay = 0;
  float one_minus_decay = 0;
  float power = 0;  // ftrl: minus the learning rate power
  float ftrl_l1 = 0;
  float ftrl_l2 = 0;
  float weight_decay = 0;  // lars, lamb
  bool nesterov = false;
  bool centered = false;
  bool has_momentum = false;  // rmsprop
};

// Values that change from update to update.
struct StepSize {
  float lr = 0;                   // adam, adamax: divided by the first moment's correction;
                                  // lars, lamb: scaled by the norms
  float sqrt_correction2 = 1.0F;  // adam: root of the second moment's correction
  float keep = 1.0F;              // adamw: the share of a weight that decay leaves
};

// One optimizer step on `n` weights. The state holds consecutive arrays of n floats
// (row_optimizer.h); kernels ignore a step count after them.
using UpdateKernel = void (*)(float* w, float* state, const float* g, std::size_t n, StepSize step,
                              const KernelConstants& constants);

inline constexpr std::size_t kNumOptimizers = 15;

struct RowKernels {
  UpdateKernel update[kNumOptimizers];  // by OptimizerKind
  // The sum of x[i] * x[i], in an order that depends only on n.
  double (*sum_squares)(const float* x, std::size_t n);
  // Updates lamb's moments; returns the sum of squares of the unscaled step.
  double (*lamb_moments)(const float* w, float* state, const float* g, std::size_t n,
                         const KernelConstants& constants);
  // out = g + l2 * w + l1 * sign(w).
  void (*decay_weights)(float* out, const float* g, const float* w, std::size_t n, float l1,
                        float l2);
  void (*add)(float* to, const float* from, std::size_t n);
  // to += from * scale.
  void (*add_scaled)(float* to, const float* from, std::size_t n, float scale);
  // The sum of a[i] * b[i], in an order that depends only on n.
  float (*dot)(const float* a, const float* b, std::size_t n);
  // out = (a + b) * scale.
  void (*sum_scaled)(float* out, const float* a, const float* b, std::size_t n, float scale);
  bool (*all_finite)(const float* x, std::size_t n);
  // delta = (to - from) / share; from += delta.
  void (*take_share)(float* delta, float* from, const float* to, std::size_t n, float share);
  // x += target - from; from = target.
  void (*follow)(float* x, float* from, const float* target, std::size_t n);
};

const RowKernels& BaselineKernels();
const RowKernels& Avx2Kernels();  // x86-64 only; REQUIRES: HasAvx2()
bool HasAvx2();
// The fastest set this processor supports.
const RowKernels& BestKernels();

}  // namespace sparsefleet
