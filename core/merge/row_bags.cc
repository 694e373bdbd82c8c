#include "merge/row_bags.h"

#include <algorithm>
#include <cstring>

#include "merge/unique.h"
#include "optimizer/kernels.h"

namespace sparsefleet {
namespace {

// Rows this many ids ahead are fetched: those of one bag lie anywhere among the distinct rows.
constexpr std::ptrdiff_t kAhead = 8;
constexpr std::size_t kNear = 1 << 15;  // so few floats are in a near cache anyway
constexpr std::size_t kLineFloats = 16;
constexpr std::size_t kMaxLines = 4;  // of a row; hardware fetches the rest of a long one

// The floats of a register; as arrays of single floats, sums would stay in memory.
typedef float Lane __attribute__((vector_size(16)));
constexpr std::size_t kLane = sizeof(Lane) / sizeof(float);

// The ids of some bags, in order, and their rows.
class PlacedRows {
 public:
  explicit PlacedRows(const RowBags& bags)
      : dim_(bags.dim),
        fetched_(bags.ids.rows.size() <= kNear ? 0 : std::min(dim_, kMaxLines * kLineFloats)),
        last_(bags.ids.inverse.data() + bags.ids.inverse.size()) {}

  // The row of `*place`; fetches one of those that follow.
  // REQUIRES: *place is not padding.
  template <typename Float>
  Float* At(Float* rows, const std::uint32_t* place) const {
    if (fetched_ > 0 && last_ - place > kAhead && place[kAhead] != kPaddingPlace) {
      Float* const next = rows + place[kAhead] * dim_;
      for (std::size_t at = 0; at < fetched_; at += kLineFloats) __builtin_prefetch(next + at);
    }
    return rows + *place * dim_;
  }

 private:
  const std::size_t dim_;
  const std::size_t fetched_;
  const std::uint32_t* const last_;
};

// SumBags for rows that fit in registers.
template <std::size_t Dim>
void SumNarrow(const RowBags& bags, std::size_t stride, float* out) {
  const PlacedRows placed(bags);
  const float* const rows = bags.ids.rows.data();
  const std::uint32_t* place = bags.ids.inverse.data();
  for (const std::int64_t length : bags.lengths) {
    const std::uint32_t* const end = place + length;
    while (place < end && *place == kPaddingPlace) ++place;
    if (place == end) {
      std::fill_n(out, Dim, 0.0F);
    } else {
      Lane sums[Dim / kLane];
      std::memcpy(sums, placed.At(rows, place), sizeof(sums));
      for (++place; place < end; ++place) {
        if (*place == kPaddingPlace) continue;
        const float* const row = placed.At(rows, place);
        for (std::size_t i = 0; i < Dim / kLane; ++i) {
          Lane lane;
          std::memcpy(&lane, row + i * kLane, sizeof(lane));
          sums[i] += lane;
        }
      }
      std::memcpy(out, sums, sizeof(sums));
    }
    out += stride;
  }
}

void SumWide(const RowBags& bags, std::size_t stride, float* out) {
  const auto add = BestKernels().add;
  const PlacedRows placed(bags);
  const float* const rows = bags.ids.rows.data();
  const std::uint32_t* place = bags.ids.inverse.data();
  for (const std::int64_t length : bags.lengths) {
    bool is_empty = true;
    for (const std::uint32_t* const end = place + length; place < end; ++place) {
      if (*place == kPaddingPlace) continue;
      const float* const row = placed.At(rows, place);
      if (is_empty) {
        std::copy_n(row, bags.dim, out);
      } else {
        add(out, row, bags.dim);
      }
      is_empty = false;
    }
    if (is_empty) std::fill_n(out, bags.dim, 0.0F);
    out += stride;
  }
}

}  // namespace

void SumBags(const RowBags& bags, std::size_t stride, float* out) {
  switch (bags.dim) {
    case 4:
      return SumNarrow<4>(bags, stride, out);
    case 8:
      return SumNarrow<8>(bags, stride, out);
    case 16:
      return SumNarrow<16>(bags, stride, out);
    case 32:
      return SumNarrow<32>(bags, stride, out);
    default:
      return SumWide(bags, stride, out);
  }
}

void AddBagGradients(const RowBags& bags, std::size_t stride, const float* gradients,
                     std::span<float> sums) {
  const auto add = BestKernels().add;
  const PlacedRows placed(bags);
  const std::uint32_t* place = bags.ids.inverse.data();
  for (const std::int64_t length : bags.lengths) {
    for (const std::uint32_t* const end = place + length; place < end; ++place) {
      if (*place != kPaddingPlace) add(placed.At(sums.data(), place), gradients, bags.dim);
    }
    gradients += stride;
  }
}

}  // namespace sparsefleet
