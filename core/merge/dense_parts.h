// A dense gradient in consecutive parts, as a backward pass produces it.
#pragma once

#include <cstddef>
#include <span>

namespace sparsefleet {

using DenseParts = std::span<const std::span<const float>>;

std::size_t SizeOfParts(DenseParts parts);
bool AllFinite(DenseParts parts);

// Copies the parts to `out`. REQUIRES: out.size() == SizeOfParts(parts), for all of these.
void JoinParts(DenseParts parts, std::span<float> out);

// Adds the parts to `out`.
void AddParts(DenseParts parts, std::span<float> out);

// One step of plain SGD, values -= learning_rate * gradient. Returns false and changes nothing if
// the parts contain NaN or infinity.
bool StepByParts(DenseParts parts, float learning_rate, std::span<float> values);

}  // namespace sparsefleet
