// Makes the keys of a batch unique.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "key/key.h"
#include "key/key_hash.h"

namespace sparsefleet {

// The row number of a key that has no row: padding.
inline constexpr std::uint32_t kPaddingPlace = 0xFFFFFFFFU;

// In positions [begin, end) of a batch this key means padding.
struct PaddedRange {
  std::size_t begin = 0;
  std::size_t end = 0;
  Key padding = 0;
};

// The distinct keys of a batch, in order of first occurrence, and where each key went.
// Reuses its buffers from batch to batch. Not thread-safe.
class UniqueKeys {
 public:
  // REQUIRES: keys.size() < 2^31.
  void Build(std::span<const Key> keys) { Build(keys, {}); }
  // As above; padding is not in keys(), and is kPaddingPlace in inverse().
  // REQUIRES: ranges in order, disjoint and within keys.
  void Build(std::span<const Key> keys, std::span<const PaddedRange> padded);

  std::size_t size() const { return keys_.size(); }
  bool has_repeats() const { return keys_.size() != inverse_.size(); }
  std::span<const Key> keys() const { return keys_; }
  // inverse()[i] is the index in keys() of the i-th key of the batch, or kPaddingPlace.
  std::span<const std::uint32_t> inverse() const { return inverse_; }
  // The longest probe for a key of the last batch; scans the whole table.
  std::size_t LongestProbe() const;

 private:
  std::uint32_t PlaceOf(Key key);

  KeyHash hash_;
  std::vector<Key> keys_;
  std::vector<std::uint32_t> inverse_;
  std::vector<std::uint32_t> table_;  // open addressing: index into keys_ plus one, 0 is empty
};

// Adds row i of `rows` to row inverse[i] of `out`, in order of i. Rows of kPaddingPlace are
// skipped. REQUIRES: rows.size() == inverse.size() * dim; out.size() is a multiple of dim and
// covers every row in inverse.
void AddRows(std::span<const float> rows, std::span<const std::uint32_t> inverse, std::size_t dim,
             std::span<float> out);

// The same; `out` starts at zero.
void SumRows(std::span<const float> rows, std::span<const std::uint32_t> inverse, std::size_t dim,
             std::span<float> out);

// Copies row inverse[i] of `rows` to row i of `out`; zeros for kPaddingPlace.
// REQUIRES: out.size() == inverse.size() * dim; `rows` covers every row in inverse.
void GatherRows(std::span<const float> rows, std::span<const std::uint32_t> inverse,
                std::size_t dim, std::span<float> out);

}  // namespace sparsefleet
