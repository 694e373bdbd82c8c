// Sums of the rows of bags of ids, and their gradients, on distinct rows only: nothing as large as
// one row per id is ever allocated.
//
// In shapes: B bags, N ids in all bags, row width D, U distinct rows of a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "merge/row_dots.h"

namespace sparsefleet {

// The bags of one feature: the first lengths[0] places of `ids` are the first bag, and so on.
struct RowBags {
  RowSide ids;                            // N places
  std::span<const std::int64_t> lengths;  // [B], not negative, N in total
  std::size_t dim = 0;
};

// Writes the sum of the rows of bag i to out[i * stride .. + D], in order of the ids; zeros for an
// empty bag. Padding is skipped. REQUIRES: row numbers in range; out covers B strides.
void SumBags(const RowBags& bags, std::size_t stride, float* out);

// Adds the gradients of the rows to `sums`, [U, D], in order of the ids, given those of SumBags's
// results. REQUIRES: as for SumBags.
void AddBagGradients(const RowBags& bags, std::size_t stride, const float* gradients,
                     std::span<float> sums);

}  // namespace sparsefleet
