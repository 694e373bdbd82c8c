// The loops behind window_step.h. Included by one source file per instruction set, each of which
// gets its own copy: everything here has internal linkage and calls no shared inline function.
//
// Threads train the same rows without locks, as word2vec and gensim do (Hogwild): a lost update
// costs less than a lock. ThreadSanitizer ignores it.
#pragma once

#include <cstddef>

#include "pairs/window_step.h"

#if defined(__clang__) || defined(__GNUC__)
#define SPARSEFLEET_RACY __attribute__((no_sanitize("thread")))
#endif

namespace sparsefleet {
namespace {

// The number of floats in a register.
#if defined(__AVX2__)
typedef float Lane __attribute__((vector_size(32)));
#else
typedef float Lane __attribute__((vector_size(16)));
#endif
constexpr std::size_t kLane = sizeof(Lane) / sizeof(float);
static_assert(kRowStep % kLane == 0);

SPARSEFLEET_RACY inline Lane Load(const float* from) {
  Lane lane;
  __builtin_memcpy(&lane, from, sizeof(lane));
  return lane;
}

SPARSEFLEET_RACY inline void Store(float* to, const Lane& lane) {
  __builtin_memcpy(to, &lane, sizeof(lane));
}

inline float SumOf(const Lane& lane) {
  float sum = 0;
  for (std::size_t i = 0; i < kLane; ++i) sum += lane[i];
  return sum;
}

inline float SigmoidOf(float x, const float* table) {
  if (x >= kMaxLogit) return 1.0F;
  if (x <= -kMaxLogit) return 0.0F;
  return table[static_cast<std::size_t>((x + kMaxLogit) * (kSigmoidSlots / (2 * kMaxLogit)))];
}

// logits[n, first .. first + T) for all inputs.
template <std::size_t T>
SPARSEFLEET_RACY void Multiply(const WindowRows& rows, std::size_t first) {
  const float* targets[T];
  for (std::size_t t = 0; t < T; ++t) targets[t] = rows.targets[first + t];
  for (std::size_t n = 0; n < rows.num_inputs; ++n) {
    const float* input = rows.inputs[n];
    Lane sums[T] = {};
    for (std::size_t d = 0; d < rows.width; d += kLane) {
      const Lane x = Load(input + d);
      for (std::size_t t = 0; t < T; ++t) {
        sums[t] += x * Load(targets[t] + d);
      }
    }
    float* out = rows.logits + n * rows.num_targets + first;
    for (std::size_t t = 0; t < T; ++t) out[t] = SumOf(sums[t]);
  }
}

// Moves T targets along the inputs, and `moved`, one lane per input, along the targets.
template <std::size_t T>
SPARSEFLEET_RACY inline void MoveLane(const WindowRows& rows, std::size_t first, std::size_t d,
                                      const float* inputs, float* moved) {
  Lane values[T];
  Lane sums[T];
  for (std::size_t t = 0; t < T; ++t) {
    values[t] = sums[t] = Load(rows.targets[first + t] + d);
  }
  const float* step = rows.steps + first;
  for (std::size_t n = 0; n < rows.num_inputs; ++n, step += rows.num_targets) {
    const Lane x = Load(inputs + n * kLane);
    Lane y = Load(moved + n * kLane);
    for (std::size_t t = 0; t < T; ++t) {
      y += step[t] * values[t];
      sums[t] += step[t] * x;
    }
    Store(moved + n * kLane, y);
  }
  for (std::size_t t = 0; t < T; ++t) {
    Store(rows.targets[first + t] + d, sums[t]);
  }
}

// Calls visit<T>(first) for groups of at most kGroup targets, which fit in registers.
constexpr std::size_t kGroup = 6;

template <typename Visit>
inline void InGroups(std::size_t count, Visit visit) {
  std::size_t first = 0;
  for (; count - first > kGroup; first += kGroup) visit.template operator()<kGroup>(first);
  switch (count - first) {
    case 1:
      return visit.template operator()<1>(first);
    case 2:
      return visit.template operator()<2>(first);
    case 3:
      return visit.template operator()<3>(first);
    case 4:
      return visit.template operator()<4>(first);
    case 5:
      return visit.template operator()<5>(first);
    default:
      return visit.template operator()<kGroup>(first);
  }
}

SPARSEFLEET_RACY void Step(const WindowRows& rows) {
  InGroups(rows.num_targets,
           [&rows]<std::size_t T>(std::size_t first) { Multiply<T>(rows, first); });
  for (std::size_t n = 0; n < rows.num_inputs; ++n) {
    for (std::size_t t = 0; t < rows.num_targets; ++t) {
      const std::size_t at = n * rows.num_targets + t;
      const float wanted = t == 0 ? 1.0F : 0.0F;
      rows.steps[at] = rows.learning_rate * (wanted - SigmoidOf(rows.logits[at], rows.sigmoid));
    }
  }
  float* inputs = rows.lanes;
  float* moved = inputs + rows.num_inputs * kLane;
  for (std::size_t d = 0; d < rows.width; d += kLane) {
    for (std::size_t n = 0; n < rows.num_inputs; ++n) {
      const Lane x = Load(rows.inputs[n] + d);
      Store(inputs + n * kLane, x);
      Store(moved + n * kLane, x);
    }
    InGroups(rows.num_targets, [&rows, d, inputs, moved]<std::size_t T>(std::size_t first) {
      MoveLane<T>(rows, first, d, inputs, moved);
    });
    for (std::size_t n = 0; n < rows.num_inputs; ++n) {
      Store(rows.inputs[n] + d, Load(moved + n * kLane));
    }
  }
}

}  // namespace
}  // namespace sparsefleet
