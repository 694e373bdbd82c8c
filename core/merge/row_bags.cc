#include "merge/row_bags.h"

#include <algorithm>

#include "merge/unique.h"
#include "optimizer/kernels.h"

namespace sparsefleet {

void SumBags(const RowBags& bags, std::size_t stride, float* out) {
  const auto add = BestKernels().add;
  const std::size_t dim = bags.dim;
  const float* const rows = bags.ids.rows.data();
  const std::uint32_t* place = bags.ids.inverse.data();
  for (const std::int64_t length : bags.lengths) {
    bool is_empty = true;
    for (const std::uint32_t* const end = place + length; place < end; ++place) {
      if (*place == kPaddingPlace) continue;
      if (is_empty) {
        std::copy_n(rows + *place * dim, dim, out);
      } else {
        add(out, rows + *place * dim, dim);
      }
      is_empty = false;
    }
    if (is_empty) std::fill_n(out, dim, 0.0F);
    out += stride;
  }
}

void AddBagGradients(const RowBags& bags, std::size_t stride, const float* gradients,
                     std::span<float> sums) {
  const auto add = BestKernels().add;
  const std::size_t dim = bags.dim;
  const std::uint32_t* place = bags.ids.inverse.data();
  for (const std::int64_t length : bags.lengths) {
    for (const std::uint32_t* const end = place + length; place < end; ++place) {
      if (*place != kPaddingPlace) add(sums.data() + *place * dim, gradients, dim);
    }
    gradients += stride;
  }
}

}  // namespace sparsefleet
