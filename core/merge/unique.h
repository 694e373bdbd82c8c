// Repeated keys of one batch brought together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "table/key.h"

namespace sparsefleet {

// Stands for the place of a key that has no row: padding.
inline constexpr std::uint32_t kPaddingPlace = 0xFFFFFFFFU;

// In positions [begin, end) of a batch this key means "nothing here".
struct PaddedRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  Key padding = 0;
};

// The distinct keys of a batch, in order of first occurrence, and where each key went.
// Keeps its buffers from batch to batch. Not thread-safe.
class UniqueKeys {
 public:
  // REQUIRES: keys.size() < 2^31.
  void Build(std::span<const Key> keys) { Build(keys, {}); }
  // As above; padding gets no place in keys(), and kPaddingPlace in inverse().
  // REQUIRES: ranges in order, apart from each other and within keys.
  void Build(std::span<const Key> keys, std::span<const PaddedRange> padded);

  std::size_t size() const { return keys_.size(); }
  bool has_repeats() const { return keys_.size() != inverse_.size(); }
  std::span<const Key> keys() const { return keys_; }
  // inverse()[i] is the place in keys() of the i-th key of the batch, or kPaddingPlace.
  std::span<const std::uint32_t> inverse() const { return inverse_; }

 private:
  std::uint32_t PlaceOf(Key key);

  std::vector<Key> keys_;
  std::vector<std::uint32_t> inverse_;
  std::vector<std::uint32_t> table_;  // open addressing: place in keys_ plus one, 0 is empty
};

// Adds row i of `rows` to row inverse[i] of `out`, in order of i. Rows of kPaddingPlace are left
// out.
// REQUIRES: rows.size() == inverse.size() * dim, out.size() a multiple of dim that holds
// every row inverse names.
void AddRows(std::span<const float> rows, std::span<const std::uint32_t> inverse, std::size_t dim,
             std::span<float> out);

// The same; `out` starts from zero.
void SumRows(std::span<const float> rows, std::span<const std::uint32_t> inverse, std::size_t dim,
             std::span<float> out);

// Copies row inverse[i] of `rows` to row i of `out`; zeros for kPaddingPlace.
// REQUIRES: out.size() == inverse.size() * dim, `rows` holds every row inverse names.
void GatherRows(std::span<const float> rows, std::span<const std::uint32_t> inverse,
                std::size_t dim, std::span<float> out);

}  // namespace sparsefleet
