#include "store/gradient_merge.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "optimizer/kernels.h"

namespace sparsefleet {
namespace {

// Elements summed over all contributions while they are in the cache.
constexpr std::size_t kBlock = 4096;

std::span<float> Room(std::vector<float>& room, std::size_t size) {
  if (room.size() < size) room.resize(size);
  return std::span(room).first(size);
}

void Scale(std::span<float> values, float scale) {
  if (scale == 1.0F) return;
  for (float& value : values) value *= scale;
}

Status Mismatch(std::string_view table, const std::string& found) {
  return {Code::kShapeMismatch, "table '" + std::string(table) +
                                    "': gradients to merge must have the same shape, got " + found};
}

// Reads a gradient stored in parts, from front to back.
class PartReader {
 public:
  explicit PartReader(DenseParts parts) : parts_(parts) {}

  // The elements from here to the end of the part; empty at the end of the gradient.
  std::span<const float> rest() {
    while (part_ < parts_.size() && at_ == parts_[part_].size()) {
      ++part_;
      at_ = 0;
    }
    return part_ < parts_.size() ? parts_[part_].subspan(at_) : std::span<const float>();
  }
  const float* Take(std::size_t count) {
    const float* const taken = parts_[part_].data() + at_;
    at_ += count;
    return taken;
  }

 private:
  const DenseParts parts_;
  std::size_t part_ = 0;
  std::size_t at_ = 0;
};

}  // namespace

Result<std::span<const PushSection>> GradientMerge::Build(
    std::span<const Contribution* const> contributions, const TableNames& summed) {
  merged_.clear();
  if (contributions.size() == 1) return std::span<const PushSection>(contributions[0]->sections);
  std::unordered_map<std::string_view, std::size_t> places;
  for (const Contribution* contribution : contributions) {
    for (const PushSection& section : contribution->sections) {
      const auto [place, is_new] = places.try_emplace(section.table, places.size());
      if (is_new && tables_.size() < places.size()) tables_.push_back(std::make_unique<Table>());
      Table& table = *tables_[place->second];
      if (is_new) table.parts.clear();
      table.parts.push_back(section);
    }
  }
  const float mean_scale = 1.0F / static_cast<float>(contributions.size());
  merged_.resize(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    Table& table = *tables_[i];
    const PushSection& first = table.parts[0];
    for (const PushSection& part : table.parts) {
      if (part.dense != first.dense || part.add) {
        return Mismatch(first.table, "a mix of dense, sparse or additive ones");
      }
    }
    const float scale = summed.contains(first.table) ? 1.0F : mean_scale;
    merged_[i].table = first.table;
    merged_[i].dense = first.dense;
    for (const PushSection& part : table.parts) {
      if (!part.out.empty()) merged_[i].out = part.out;
    }
    const Status status =
        first.dense ? MergeDense(table, scale, merged_[i]) : MergeSparse(table, scale, merged_[i]);
    if (!status.ok()) return status;
  }
  return std::span<const PushSection>(merged_);
}

Status GradientMerge::MergeDense(Table& table, float scale, PushSection& out) {
  const std::size_t size = SizeOfParts(table.parts[0].all_parts());
  std::vector<PartReader> readers;
  readers.reserve(table.parts.size());
  for (const PushSection& part : table.parts) {
    const DenseParts gradient = part.all_parts();
    if (const std::size_t found = SizeOfParts(gradient); found != size) {
      return Mismatch(part.table,
                      std::to_string(size) + " and " + std::to_string(found) + " elements");
    }
    readers.emplace_back(gradient);
  }
  const RowKernels& kernels = BestKernels();
  const std::span<float> sum = Room(table.values, size);
  const bool is_pair = table.parts.size() == 2;
  for (std::size_t at = 0; at < size;) {
    std::size_t length = kBlock;
    for (PartReader& reader : readers) length = std::min(length, reader.rest().size());
    const std::span<float> block = sum.subspan(at, length);
    const float* const first = readers[0].Take(length);
    if (readers.size() == 1) {
      std::memcpy(block.data(), first, length * sizeof(float));
    } else {
      // Copying and then adding would go through memory once more, as would scaling a pair later.
      kernels.sum_scaled(block.data(), first, readers[1].Take(length), length,
                         is_pair ? scale : 1.0F);
    }
    for (std::size_t i = 2; i < readers.size(); ++i) {
      kernels.add(block.data(), readers[i].Take(length), length);
    }
    if (!is_pair) Scale(block, scale);
    at += length;
  }
  out.gradients = sum;
  return Status::Ok();
}

// Replaces parts with repeated keys by their sums, as each member's own push would, and appends all
// keys.
Status GradientMerge::AppendUnique(Table& table, std::size_t dim) {
  std::size_t repeated_rows = 0;
  for (const PushSection& part : table.parts) {
    if (part.gradients.size() != part.keys.size() * dim) {
      return Mismatch(part.table, std::to_string(part.keys.size()) + " keys and " +
                                      std::to_string(part.gradients.size()) +
                                      " values, and others with " + std::to_string(dim) +
                                      " values per key");
    }
    if (!part.keys_are_unique) repeated_rows += part.keys.size();
  }
  const std::span<float> room = Room(table.part_rows, repeated_rows * dim);
  std::size_t used = 0;
  table.keys.clear();
  for (PushSection& part : table.parts) {
    if (!part.keys_are_unique) {
      table.own.Build(part.keys);
      if (table.own.has_repeats()) {
        const auto summed = room.subspan(used * dim, table.own.size() * dim);
        SumRows(part.gradients, table.own.inverse(), dim, summed);
        used += table.own.size();
        part.gradients = summed;
      }
      table.keys.insert(table.keys.end(), table.own.keys().begin(), table.own.keys().end());
    } else {
      table.keys.insert(table.keys.end(), part.keys.begin(), part.keys.end());
    }
  }
  return Status::Ok();
}

Status GradientMerge::MergeSparse(Table& table, float scale, PushSection& out) {
  const auto some =
      std::ranges::find_if(table.parts, [](const auto& p) { return !p.keys.empty(); });
  out.keys_are_unique = true;
  if (some == table.parts.end()) return Status::Ok();
  const std::size_t dim = some->gradients.size() / some->keys.size();
  if (dim == 0) return Mismatch(some->table, "keys without values");
  if (Status s = AppendUnique(table, dim); !s.ok()) return s;
  table.unique.Build(table.keys);
  const std::span<float> sum = Room(table.values, table.unique.size() * dim);
  std::ranges::fill(sum, 0.0F);
  std::size_t begin = 0;
  for (const PushSection& part : table.parts) {
    const std::size_t rows = part.gradients.size() / dim;
    AddRows(part.gradients, table.unique.inverse().subspan(begin, rows), dim, sum);
    begin += rows;
  }
  Scale(sum, scale);
  out.keys = table.unique.keys();
  out.gradients = sum;
  return Status::Ok();
}

}  // namespace sparsefleet
