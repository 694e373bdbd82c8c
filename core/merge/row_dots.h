// Dot products between rows of two tables, and their gradients, on distinct rows only: nothing as
// large as one row per pair is ever allocated.
//
// In shapes: B groups of pairs, K pairs in each, row width D, U distinct rows of a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sparsefleet {

// One side of the products: the distinct rows of a table, and which one each place refers to.
struct RowSide {
  std::span<const float> rows;             // [U, D]
  std::span<const std::uint32_t> inverse;  // row numbers, or kPaddingPlace
};

// out[i * K + k] = row left.inverse[i] times row right.inverse[i * K + k]; 0 with padding.
// Every product is summed in the same order on every processor.
// REQUIRES: left.inverse.size() == B, right.inverse.size() == out.size() == B * K with K > 0,
// row numbers in range.
void DotRows(const RowSide& left, const RowSide& right, std::size_t dim, std::span<float> out);

// Sums the gradients of the rows, in order of the pairs, given those of DotRows's results: sums
// have the shape of the rows and start at zero. A side with empty sums is skipped. Both sides may
// be the same table, with one array of sums. REQUIRES: as for DotRows; gradients.size() == B * K;
// sums do not overlap the rows.
void SumDotGradients(std::span<const float> gradients, const RowSide& left, const RowSide& right,
                     std::size_t dim, std::span<float> left_sums, std::span<float> right_sums);

}  // namespace sparsefleet
