// The arithmetic of one skip-gram window, compiled once per instruction set.
//
// This header is compiled with special instruction flags, so it includes nothing that emits shared
// inline code.
#pragma once

#include <cstddef>

namespace sparsefleet {

// Rows are padded with zeros to a multiple of this many floats.
inline constexpr std::size_t kRowStep = 8;
inline constexpr std::size_t kSigmoidSlots = 4096;
inline constexpr float kMaxLogit = 6.0F;

// N inputs (the words around a position) against T targets (the word at the position, then noise).
struct WindowRows {
  float* const* inputs;
  std::size_t num_inputs;
  float* const* targets;  // the first is the true one
  std::size_t num_targets;
  std::size_t width;  // floats of a row, a multiple of kRowStep
  float learning_rate;
  const float* sigmoid;  // kSigmoidSlots values over [-kMaxLogit, kMaxLogit)
  float* logits;         // [N, T], left for the caller
  float* steps;          // [N, T], scratch
  float* lanes;          // [2 N, kRowStep], scratch
};

// Computes all products with the current rows, then moves every input by the sum of its targets'
// steps and every target by the sum of its inputs' steps.
using WindowStep = void (*)(const WindowRows& rows);

void WindowStepBaseline(const WindowRows& rows);
void WindowStepAvx2(const WindowRows& rows);  // x86-64 only; REQUIRES: AVX2 and FMA
// The fastest one that this processor supports.
WindowStep BestWindowStep();

}  // namespace sparsefleet
