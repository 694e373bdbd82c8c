#include "merge/dense_parts.h"

#include <algorithm>

#include "optimizer/kernels.h"
#include "optimizer/optimizer_spec.h"

namespace sparsefleet {

std::size_t SizeOfParts(DenseParts parts) {
  std::size_t size = 0;
  for (const auto& part : parts) size += part.size();
  return size;
}

bool AllFinite(DenseParts parts) {
  const auto all_finite = BestKernels().all_finite;
  return std::ranges::all_of(
      parts, [&](std::span<const float> part) { return all_finite(part.data(), part.size()); });
}

void JoinParts(DenseParts parts, std::span<float> out) {
  float* to = out.data();
  for (const auto& part : parts) to = std::copy(part.begin(), part.end(), to);
}

void AddParts(DenseParts parts, std::span<float> out) {
  const RowKernels& kernels = BestKernels();
  float* to = out.data();
  for (const auto& part : parts) {
    kernels.add(to, part.data(), part.size());
    to += part.size();
  }
}

bool StepByParts(DenseParts parts, float learning_rate, std::span<float> values) {
  if (!AllFinite(parts)) return false;
  const UpdateKernel sgd = BestKernels().update[static_cast<std::size_t>(OptimizerKind::kSgd)];
  float* to = values.data();
  for (const auto& part : parts) {
    sgd(to, nullptr, part.data(), part.size(), {.lr = learning_rate}, {});
    to += part.size();
  }
  return true;
}

}  // namespace sparsefleet
