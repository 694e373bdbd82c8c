// The loops behind kernels.h. Included by one source file per instruction set, each of which gets
// its own copy: everything here has internal linkage and calls no shared inline function.
//
// Where torch.optim has the optimizer, the order of operations is torch's, in float32.
#pragma once

#include <cstddef>
#include <cstdint>

#include "optimizer/kernels.h"

namespace sparsefleet {
namespace {

inline float Sign(float x) { return static_cast<float>((x > 0.0F) - (x < 0.0F)); }

// torch.lerp: exact at both ends.
inline float Lerp(float from, float to, float weight) {
  return weight < 0.5F ? from + weight * (to - from) : to - (to - from) * (1.0F - weight);
}

using Lanes __attribute__((vector_size(32))) = float;
using HalfLanes __attribute__((vector_size(16))) = float;
using Doubles __attribute__((vector_size(32))) = double;  // GCC keeps larger vectors in memory

inline void AddSquares(Doubles& sums, const float* x) {
  HalfLanes values;
  __builtin_memcpy(&values, x, sizeof(values));
  const Doubles wide = __builtin_convertvector(values, Doubles);
  sums += wide * wide;
}

double SumSquares(const float* x, std::size_t n) {
  Doubles first = {};
  Doubles second = {};
  Doubles third = {};
  Doubles fourth = {};
  std::size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    AddSquares(first, x + i);
    AddSquares(second, x + i + 4);
    AddSquares(third, x + i + 8);
    AddSquares(fourth, x + i + 12);
  }
  for (; i + 8 <= n; i += 8) {
    AddSquares(first, x + i);
    AddSquares(second, x + i + 4);
  }
  double rest = 0.0;
  for (; i < n; ++i) rest += static_cast<double>(x[i]) * x[i];
  const Doubles sums = (first + third) + (second + fourth);
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + rest;
}

void Sgd(float* __restrict w, float*, const float* __restrict g, std::size_t n, StepSize step,
         const KernelConstants&) {
  for (std::size_t i = 0; i < n; ++i) w[i] -= step.lr * g[i];
}

void Momentum(float* __restrict w, float* __restrict buffer, const float* __restrict g,
              std::size_t n, StepSize step, const KernelConstants& c) {
  const float mu = c.momentum;
  const float lr = step.lr;
  if (c.nesterov) {
    for (std::size_t i = 0; i < n; ++i) {
      buffer[i] = mu * buffer[i] + g[i];
      w[i] -= lr * (g[i] + mu * buffer[i]);
    }
  } else {
    for (std::size_t i = 0; i < n; ++i) {
      buffer[i] = mu * buffer[i] + g[i];
      w[i] -= lr * buffer[i];
    }
  }
}

void Adagrad(float* __restrict w, float* __restrict sum, const float* __restrict g, std::size_t n,
             StepSize step, const KernelConstants& c) {
  const float epsilon = c.epsilon;
  for (std::size_t i = 0; i < n; ++i) {
    sum[i] += g[i] * g[i];
    w[i] -= step.lr * g[i] / (__builtin_sqrtf(sum[i]) + epsilon);
  }
}

void RowwiseAdagrad(float* __restrict w, float* __restrict sum, const float* __restrict g,
                    std::size_t n, StepSize step, const KernelConstants& c) {
  sum[0] += static_cast<float>(SumSquares(g, n) / static_cast<double>(n));
  const float divisor = __builtin_sqrtf(sum[0]) + c.epsilon;
  for (std::size_t i = 0; i < n; ++i) w[i] -= step.lr * g[i] / divisor;
}

void DecayedAdagrad(float* __restrict w, float* __restrict moment, const float* __restrict g,
                    std::size_t n, StepSize step, const KernelConstants& c) {
  const float decay = c.decay;
  const float rest = c.one_minus_decay;
  const float epsilon = c.epsilon;
  for (std::size_t i = 0; i < n; ++i) {
    moment[i] = decay * moment[i] + rest * g[i] * g[i];
    w[i] -= step.lr * g[i] / (__builtin_sqrtf(moment[i]) + epsilon);
  }
}

// Updates the running means of the squared gradient and, if centered, of the gradient.
inline void RmspropMoments(float* __restrict square, float* __restrict mean,
                           const float* __restrict g, std::size_t n, const KernelConstants& c) {
  const float decay = c.decay;
  const float rest = c.one_minus_decay;
  for (std::size_t i = 0; i < n; ++i) square[i] = square[i] * decay + rest * g[i] * g[i];
  if (!c.centered) return;
  for (std::size_t i = 0; i < n; ++i) mean[i] = Lerp(mean[i], g[i], rest);
}

// A variance; rounding must not make it negative and its root NaN.
inline float Variance(float square, float mean) {
  const float variance = square - mean * mean;
  return variance > 0.0F ? variance : 0.0F;
}

void Rmsprop(float* __restrict w, float* __restrict state, const float* __restrict g, std::size_t n,
             StepSize step, const KernelConstants& c) {
  float* __restrict square = state;
  float* __restrict mean = state + n;
  float* __restrict buffer = state + (c.centered ? 2 * n : n);
  const float epsilon = c.epsilon;
  const float mu = c.momentum;
  RmspropMoments(square, mean, g, n, c);
  for (std::size_t i = 0; i < n; ++i) {
    const float spread = c.centered ? Variance(square[i], mean[i]) : square[i];
    const float divisor = __builtin_sqrtf(spread) + epsilon;
    if (c.has_momentum) {
      buffer[i] = buffer[i] * mu + g[i] / divisor;
      w[i] -= step.lr * buffer[i];
    } else {
      w[i] -= step.lr * g[i] / divisor;
    }
  }
}

// RMSprop as in Fluid and TensorFlow: epsilon under the root, the rate within the momentum.
void FluidRmsprop(float* __restrict w, float* __restrict state, const float* __restrict g,
                  std::size_t n, StepSize step, const KernelConstants& c) {
  float* __restrict square = state;
  float* __restrict mean = state + n;
  float* __restrict buffer = state + (c.centered ? 2 * n : n);
  RmspropMoments(square, mean, g, n, c);
  for (std::size_t i = 0; i < n; ++i) {
    const float spread = c.centered ? Variance(square[i], mean[i]) : square[i];
    const float moved = step.lr * g[i] / __builtin_sqrtf(spread + c.epsilon);
    if (c.has_momentum) {
      buffer[i] = buffer[i] * c.momentum + moved;
      w[i] -= buffer[i];
    } else {
      w[i] -= moved;
    }
  }
}

// Zeiler 2012, "ADADELTA".
void Adadelta(float* __restrict w, float* __restrict state, const float* __restrict g,
              std::size_t n, StepSize step, const KernelConstants& c) {
  float* __restrict square = state;
  float* __restrict delta = state + n;
  for (std::size_t i = 0; i < n; ++i) {
    square[i] = square[i] * c.decay + c.one_minus_decay * g[i] * g[i];
    const float moved =
        __builtin_sqrtf(delta[i] + c.epsilon) / __builtin_sqrtf(square[i] + c.epsilon) * g[i];
    delta[i] = delta[i] * c.decay + c.one_minus_decay * moved * moved;
    w[i] -= step.lr * moved;
  }
}

// As Fluid 1.8 computes it: the step uses the mean of squared steps that already includes it, and
// the learning rate is ignored.
void FluidAdadelta(float* __restrict w, float* __restrict state, const float* __restrict g,
                   std::size_t n, StepSize, const KernelConstants& c) {
  float* __restrict square = state;
  float* __restrict delta = state + n;
  const float epsilon = c.epsilon;
  for (std::size_t i = 0; i < n; ++i) {
    square[i] = square[i] * c.decay + c.one_minus_decay * g[i] * g[i];
    const float moved = __builtin_sqrtf((delta[i] + epsilon) / (square[i] + epsilon)) * g[i];
    delta[i] = delta[i] * c.decay + c.one_minus_decay * moved * moved;
    w[i] -= __builtin_sqrtf((delta[i] + epsilon) / (square[i] + epsilon)) * g[i];
  }
}

// You et al. 2017, "Large Batch Training of Convolutional Networks".
void Lars(float* __restrict w, float* __restrict velocity, const float* __restrict g, std::size_t n,
          StepSize step, const KernelConstants& c) {
  for (std::size_t i = 0; i < n; ++i) {
    velocity[i] = c.momentum * velocity[i] + step.lr * (g[i] + c.weight_decay * w[i]);
    w[i] -= velocity[i];
  }
}

inline float LambStep(float w, float m, float v, const KernelConstants& c) {
  return m / (__builtin_sqrtf(v) + c.epsilon) + c.weight_decay * w;
}

// You et al. 2019, "Large Batch Optimization for Deep Learning", without bias correction as in
// Fluid 1.8. The moments are those of LambMoments().
void Lamb(float* __restrict w, float* __restrict state, const float*, std::size_t n, StepSize step,
          const KernelConstants& c) {
  const float* __restrict m = state;
  const float* __restrict v = state + n;
  for (std::size_t i = 0; i < n; ++i) w[i] -= step.lr * LambStep(w[i], m[i], v[i], c);
}

inline void AdamLoop(float* __restrict w, float* __restrict m, float* __restrict v,
                     const float* __restrict g, std::size_t n, StepSize step,
                     const KernelConstants& c) {
  const float weight1 = c.one_minus_beta1;
  const float weight2 = c.one_minus_beta2;
  const float beta2 = c.beta2;
  const float epsilon = c.epsilon;
  for (std::size_t i = 0; i < n; ++i) {
    m[i] = Lerp(m[i], g[i], weight1);
    v[i] = v[i] * beta2 + weight2 * g[i] * g[i];
    const float divisor = __builtin_sqrtf(v[i]) / step.sqrt_correction2 + epsilon;
    w[i] -= step.lr * m[i] / divisor;
  }
}

void Adam(float* w, float* state, const float* g, std::size_t n, StepSize step,
          const KernelConstants& c) {
  AdamLoop(w, state, state + n, g, n, step, c);
}

// Loshchilov and Hutter 2019, "Decoupled Weight Decay Regularization".
void Adamw(float* w, float* state, const float* g, std::size_t n, StepSize step,
           const KernelConstants& c) {
  for (std::size_t i = 0; i < n; ++i) w[i] *= step.keep;
  AdamLoop(w, state, state + n, g, n, step, c);
}

inline void AdamaxLoop(float* __restrict w, float* __restrict m, float* __restrict norm,
                       const float* __restrict g, std::size_t n, StepSize step,
                       const KernelConstants& c) {
  const float weight1 = c.one_minus_beta1;
  const float beta2 = c.beta2;
  const float epsilon = c.epsilon;
  for (std::size_t i = 0; i < n; ++i) {
    m[i] = Lerp(m[i], g[i], weight1);
    const float old_norm = norm[i] * beta2;
    const float new_norm = __builtin_fabsf(g[i]) + epsilon;
    norm[i] = old_norm > new_norm ? old_norm : new_norm;
    w[i] -= step.lr * m[i] / norm[i];
  }
}

void Adamax(float* w, float* state, const float* g, std::size_t n, StepSize step,
            const KernelConstants& c) {
  AdamaxLoop(w, state, state + n, g, n, step, c);
}

template <typename Power>
inline void FtrlLoop(float* __restrict w, float* __restrict squares, float* __restrict linear,
                     const float* __restrict g, std::size_t n, float lr, const KernelConstants& c,
                     Power power) {
  const float l1 = c.ftrl_l1;
  const float l2 = 2.0F * c.ftrl_l2;
  for (std::size_t i = 0; i < n; ++i) {
    const float sum = squares[i] + g[i] * g[i];
    const float root = power(sum);
    linear[i] += g[i] - (root - power(squares[i])) / lr * w[i];
    squares[i] = sum;
    const float numerator = l1 * Sign(linear[i]) - linear[i];
    const float divisor = root / lr + l2;
    // A gradient whose square underflows leaves the divisor at zero: then the weight does not
    // change.
    const float moved = divisor > 0.0F ? numerator / divisor : w[i];
    w[i] = __builtin_fabsf(linear[i]) > l1 ? moved : 0.0F;
  }
}

// McMahan et al. 2013, "Ad Click Prediction", as in Fluid's ftrl operator.
void Ftrl(float* w, float* state, const float* g, std::size_t n, StepSize step,
          const KernelConstants& c) {
  if (!(step.lr > 0.0F)) return;  // the step divides by it
  if (c.power == 0.5F) {
    FtrlLoop(w, state, state + n, g, n, step.lr, c, [](float x) { return __builtin_sqrtf(x); });
  } else {
    const float power = c.power;
    FtrlLoop(w, state, state + n, g, n, step.lr, c,
             [power](float x) { return __builtin_powf(x, power); });
  }
}

void DecayWeights(float* __restrict out, const float* __restrict g, const float* __restrict w,
                  std::size_t n, float l1, float l2) {
  for (std::size_t i = 0; i < n; ++i) out[i] = g[i] + l2 * w[i] + l1 * Sign(w[i]);
}

void Add(float* __restrict to, const float* __restrict from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] += from[i];
}

void AddScaled(float* __restrict to, const float* __restrict from, std::size_t n, float scale) {
  for (std::size_t i = 0; i < n; ++i) to[i] += from[i] * scale;
}

inline void AddProducts(Lanes& sums, const float* a, const float* b) {
  Lanes left;
  Lanes right;
  __builtin_memcpy(&left, a, sizeof(left));
  __builtin_memcpy(&right, b, sizeof(right));
  sums += left * right;
}

// Sums in eight lanes, four additions in flight so that none waits for the one before. The compiler
// must not choose its own order, so this is the order for every instruction set.
float Dot(const float* a, const float* b, std::size_t n) {
  Lanes first = {};
  Lanes second = {};
  Lanes third = {};
  Lanes fourth = {};
  std::size_t i = 0;
  for (; i + 32 <= n; i += 32) {
    AddProducts(first, a + i, b + i);
    AddProducts(second, a + i + 8, b + i + 8);
    AddProducts(third, a + i + 16, b + i + 16);
    AddProducts(fourth, a + i + 24, b + i + 24);
  }
  for (; i + 8 <= n; i += 8) AddProducts(first, a + i, b + i);
  float rest = 0.0F;
  for (; i < n; ++i) rest += a[i] * b[i];
  const Lanes sums = (first + second) + (third + fourth);
  return (((sums[0] + sums[4]) + (sums[1] + sums[5])) +
          ((sums[2] + sums[6]) + (sums[3] + sums[7]))) +
         rest;
}

double LambMoments(const float* __restrict w, float* __restrict state, const float* __restrict g,
                   std::size_t n, const KernelConstants& c) {
  constexpr std::size_t kBlock = 256;
  float* __restrict m = state;
  float* __restrict v = state + n;
  float steps[kBlock];
  double squares = 0.0;
  for (std::size_t begin = 0; begin < n; begin += kBlock) {
    const std::size_t count = n - begin < kBlock ? n - begin : kBlock;
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t i = begin + k;
      m[i] = c.beta1 * m[i] + c.one_minus_beta1 * g[i];
      v[i] = c.beta2 * v[i] + c.one_minus_beta2 * g[i] * g[i];
      steps[k] = LambStep(w[i], m[i], v[i], c);
    }
    squares += SumSquares(steps, count);
  }
  return squares;
}

void SumScaled(float* __restrict out, const float* __restrict a, const float* __restrict b,
               std::size_t n, float scale) {
  for (std::size_t i = 0; i < n; ++i) out[i] = (a[i] + b[i]) * scale;
}

bool AllFinite(const float* x, std::size_t n) {
  constexpr std::uint32_t kExponent = 0x7f800000U;
  std::uint32_t found = 0;
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, x + i, sizeof(bits));
    found |= static_cast<std::uint32_t>((bits & kExponent) == kExponent);
  }
  return found == 0;
}

void TakeShare(float* __restrict delta, float* __restrict from, const float* __restrict to,
               std::size_t n, float share) {
  for (std::size_t i = 0; i < n; ++i) {
    delta[i] = (to[i] - from[i]) / share;
    from[i] += delta[i];
  }
}

void Follow(float* __restrict x, float* __restrict from, const float* __restrict target,
            std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    x[i] += target[i] - from[i];
    from[i] = target[i];
  }
}

constexpr RowKernels kKernels = {
    {Sgd, Momentum, Adagrad, RowwiseAdagrad, DecayedAdagrad, Rmsprop, Adam, Adamax, Ftrl, Adamw,
     Adadelta, FluidAdadelta, FluidRmsprop, Lars, Lamb},
    SumSquares,
    LambMoments,
    DecayWeights,
    Add,
    AddScaled,
    Dot,
    SumScaled,
    AllFinite,
    TakeShare,
    Follow};

}  // namespace
}  // namespace sparsefleet
