// A dense gradient that lies in parts, one after another, as a backward pass leaves it.
#pragma once

#include <cstddef>
#include <span>

namespace sparsefleet {

using DenseParts = std::span<const std::span<const float>>;

std::size_t SizeOfParts(DenseParts parts);
bool AllFinite(DenseParts parts);

// Copies the parts to `out`. REQUIRES: out.size() == SizeOfParts(parts), for all of these.
void JoinParts(DenseParts parts, std::span<float> out);

// Adds them to `out`.
void AddParts(DenseParts parts, std::span<float> out);

// One step of plain SGD, values -= learning_rate * gradient. False, and nothing is changed, if
// there is NaN or infinity among the parts.
bool StepByParts(DenseParts parts, float learning_rate, std::span<float> values);

}  // namespace sparsefleet
