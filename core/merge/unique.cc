#include "merge/unique.h"

#include <algorithm>
#include <bit>

#include "key/longest_run.h"
#include "optimizer/kernels.h"

namespace sparsefleet {

void UniqueKeys::Build(std::span<const Key> keys, std::span<const PaddedRange> padded) {
  keys_.clear();
  keys_.reserve(keys.size());
  inverse_.resize(keys.size());
  table_.assign(std::bit_ceil(std::max<std::size_t>(2 * keys.size(), 16)), 0);
  std::size_t i = 0;
  for (const PaddedRange& range : padded) {
    for (; i < range.begin; ++i) inverse_[i] = PlaceOf(keys[i]);
    for (; i < range.end; ++i) {
      inverse_[i] = keys[i] == range.padding ? kPaddingPlace : PlaceOf(keys[i]);
    }
  }
  for (; i < keys.size(); ++i) inverse_[i] = PlaceOf(keys[i]);
}

std::uint32_t UniqueKeys::PlaceOf(Key key) {
  const std::size_t mask = table_.size() - 1;
  std::size_t slot = hash_(key) & mask;
  while (table_[slot] != 0 && keys_[table_[slot] - 1] != key) slot = (slot + 1) & mask;
  if (table_[slot] == 0) {
    keys_.push_back(key);
    table_[slot] = static_cast<std::uint32_t>(keys_.size());
  }
  return table_[slot] - 1;
}

std::size_t UniqueKeys::LongestProbe() const {
  return LongestRun(table_, [](std::uint32_t place) { return place != 0; });
}

void SumRows(std::span<const float> rows, std::span<const std::uint32_t> inverse, std::size_t dim,
             std::span<float> out) {
  std::fill(out.begin(), out.end(), 0.0F);
  AddRows(rows, inverse, dim, out);
}

void AddRows(std::span<const float> rows, std::span<const std::uint32_t> inverse, std::size_t dim,
             std::span<float> out) {
  const RowKernels& kernels = BestKernels();
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    if (inverse[i] == kPaddingPlace) continue;
    kernels.add(out.data() + inverse[i] * dim, rows.data() + i * dim, dim);
  }
}

void GatherRows(std::span<const float> rows, std::span<const std::uint32_t> inverse,
                std::size_t dim, std::span<float> out) {
  float* to = out.data();
  for (const std::uint32_t place : inverse) {
    if (place == kPaddingPlace) {
      std::fill_n(to, dim, 0.0F);
    } else {
      std::copy_n(rows.data() + place * dim, dim, to);
    }
    to += dim;
  }
}

}  // namespace sparsefleet
