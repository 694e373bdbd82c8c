#include "merge/row_dots.h"

#include <algorithm>

#include "merge/unique.h"
#include "optimizer/kernels.h"

namespace sparsefleet {
namespace {

// Calls visit(pair, left place, right place) for the pairs without padding, in order.
template <typename Visit>
void ForEachPair(const RowSide& left, const RowSide& right, Visit visit) {
  if (left.inverse.empty()) return;
  const std::size_t group = right.inverse.size() / left.inverse.size();
  std::size_t pair = 0;
  for (const std::uint32_t left_place : left.inverse) {
    for (const std::size_t end = pair + group; pair < end; ++pair) {
      const std::uint32_t right_place = right.inverse[pair];
      if (left_place == kPaddingPlace || right_place == kPaddingPlace) continue;
      visit(pair, std::size_t{left_place}, std::size_t{right_place});
    }
  }
}

}  // namespace

void DotRows(const RowSide& left, const RowSide& right, std::size_t dim, std::span<float> out) {
  const auto dot = BestKernels().dot;
  std::ranges::fill(out, 0.0F);
  ForEachPair(left, right, [&](std::size_t pair, std::size_t at_left, std::size_t at_right) {
    out[pair] = dot(left.rows.data() + at_left * dim, right.rows.data() + at_right * dim, dim);
  });
}

void SumDotGradients(std::span<const float> gradients, const RowSide& left, const RowSide& right,
                     std::size_t dim, std::span<float> left_sums, std::span<float> right_sums) {
  std::ranges::fill(left_sums, 0.0F);
  if (right_sums.data() != left_sums.data()) std::ranges::fill(right_sums, 0.0F);
  const auto add_scaled = BestKernels().add_scaled;
  ForEachPair(left, right, [&](std::size_t pair, std::size_t at_left, std::size_t at_right) {
    const float gradient = gradients[pair];
    if (!left_sums.empty()) {
      add_scaled(left_sums.data() + at_left * dim, right.rows.data() + at_right * dim, dim,
                 gradient);
    }
    if (!right_sums.empty()) {
      add_scaled(right_sums.data() + at_right * dim, left.rows.data() + at_left * dim, dim,
                 gradient);
    }
  });
}

}  // namespace sparsefleet
