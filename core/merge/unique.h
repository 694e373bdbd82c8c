// Repeated keys of one batch brought together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "table/key.h"

namespace sparsefleet {

// The distinct keys of a batch, in order of first occurrence, and where each key went.
// Keeps its buffers from batch to batch. Not thread-safe.
class UniqueKeys {
 public:
  // REQUIRES: keys.size() < 2^31.
  void Build(std::span<const Key> keys);

  std::size_t size() const { return keys_.size(); }
  bool has_repeats() const { return keys_.size() != inverse_.size(); }
  std::span<const Key> keys() const { return keys_; }
  // inverse()[i] is the place in keys() of the i-th key of the batch.
  std::span<const std::uint32_t> inverse() const { return inverse_; }

 private:
  std::vector<Key> keys_;
  std::vector<std::uint32_t> inverse_;
  std::vector<std::uint32_t> table_;  // open addressing: place in keys_ plus one, 0 is empty
};

// Adds row i of `rows` to row inverse[i] of `out`, in order of i.
// REQUIRES: rows.size() == inverse.size() * dim, out.size() a multiple of dim that holds
// every row inverse names.
void AddRows(std::span<const float> rows, std::span<const std::uint32_t> inverse, std::size_t dim,
             std::span<float> out);

// The same; `out` starts from zero.
void SumRows(std::span<const float> rows, std::span<const std::uint32_t> inverse, std::size_t dim,
             std::span<float> out);

}  // namespace sparsefleet
