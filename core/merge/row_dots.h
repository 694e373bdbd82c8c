// Dot products between rows of two tables, and their gradients, on distinct rows alone: nothing
// as large as a row for every pair is ever made.
//
// Letters: B groups of pairs, K pairs in each, D row width, U distinct rows of a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace sparsefleet {

// One side of the products: the distinct rows of a table, and which of them is meant where.
struct RowSide {
  std::span<const float> rows;             // [U, D]
  std::span<const std::uint32_t> inverse;  // places in rows, or kPaddingPlace
};

// out[i * K + k] = row of left.inverse[i] times row of right.inverse[i * K + k]; 0 with padding.
// Every product adds up in the same order on every processor.
// REQUIRES: left.inverse.size() == B, right.inverse.size() == out.size() == B * K with K > 0,
// places within the rows.
void DotRows(const RowSide& left, const RowSide& right, std::size_t dim, std::span<float> out);

// Sums the gradients of the rows, in order of the pairs, given those of DotRows's results: sums
// are of the shape of the rows and start from zero. A side whose sums are empty is left out. Both
// sides may be one table, with one array of sums.
// REQUIRES: as DotRows; gradients.size() == B * K; sums apart from the rows.
void SumDotGradients(std::span<const float> gradients, const RowSide& left, const RowSide& right,
                     std::size_t dim, std::span<float> left_sums, std::span<float> right_sums);

}  // namespace sparsefleet
