#include "merge/unique.h"

#include <algorithm>
#include <bit>

#include "optimizer/kernels.h"

namespace sparsefleet {

void UniqueKeys::Build(std::span<const Key> keys) {
  keys_.clear();
  keys_.reserve(keys.size());
  inverse_.resize(keys.size());
  const std::size_t capacity = std::bit_ceil(std::max<std::size_t>(2 * keys.size(), 16));
  table_.assign(capacity, 0);
  const std::size_t mask = capacity - 1;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const Key key = keys[i];
    std::size_t place = Mix64(key) & mask;
    while (table_[place] != 0 && keys_[table_[place] - 1] != key) place = (place + 1) & mask;
    if (table_[place] == 0) {
      keys_.push_back(key);
      table_[place] = static_cast<std::uint32_t>(keys_.size());
    }
    inverse_[i] = table_[place] - 1;
  }
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
    kernels.add(out.data() + inverse[i] * dim, rows.data() + i * dim, dim);
  }
}

}  // namespace sparsefleet
