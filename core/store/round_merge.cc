#include "store/round_merge.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>

#include "optimizer/kernels.h"

namespace sparsefleet {
namespace {

// Elements that go through all contributions while they are in the cache.
constexpr std::size_t kBlock = 4096;

std::span<float> Room(std::vector<float>& room, std::size_t size) {
  if (room.size() < size) room.resize(size);
  return std::span(room).first(size);
}

void Scale(std::span<float> values, float scale) {
  for (float& value : values) value *= scale;
}

Status Mismatch(std::string_view table, const std::string& what) {
  return {Code::kShapeMismatch,
          "table '" + std::string(table) + "': the members of the round bring " + what};
}

}  // namespace

Result<std::span<const PushSection>> RoundMerge::Build(
    std::span<const Contribution* const> contributions) {
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
  const float scale = 1.0F / static_cast<float>(contributions.size());
  merged_.resize(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    Table& table = *tables_[i];
    const PushSection& first = table.parts[0];
    for (const PushSection& part : table.parts) {
      if (part.dense != first.dense || part.add) {
        return Mismatch(first.table, "both dense and sparse gradients, or values to add");
      }
    }
    merged_[i].table = first.table;
    merged_[i].dense = first.dense;
    const Status status =
        first.dense ? MergeDense(table, scale, merged_[i]) : MergeSparse(table, scale, merged_[i]);
    if (!status.ok()) return status;
  }
  return std::span<const PushSection>(merged_);
}

Status RoundMerge::MergeDense(Table& table, float scale, PushSection& out) {
  const std::size_t size = table.parts[0].gradients.size();
  for (const PushSection& part : table.parts) {
    if (part.gradients.size() == size) continue;
    return Mismatch(part.table, std::to_string(size) + " and " +
                                    std::to_string(part.gradients.size()) + " elements");
  }
  const RowKernels& kernels = BestKernels();
  const std::span<float> sum = Room(table.values, size);
  const bool is_pair = table.parts.size() == 2;
  for (std::size_t at = 0; at < size; at += kBlock) {
    const std::size_t length = std::min(kBlock, size - at);
    const float* const first = table.parts[0].gradients.data() + at;
    if (table.parts.size() == 1) {
      std::memcpy(sum.data() + at, first, length * sizeof(float));
    } else {
      // A copy and an addition would go through memory once more; so would scaling a pair later.
      kernels.sum_scaled(sum.data() + at, first, table.parts[1].gradients.data() + at, length,
                         is_pair ? scale : 1.0F);
    }
    for (std::size_t i = 2; i < table.parts.size(); ++i) {
      kernels.add(sum.data() + at, table.parts[i].gradients.data() + at, length);
    }
    if (!is_pair) Scale(sum.subspan(at, length), scale);
  }
  out.gradients = sum;
  return Status::Ok();
}

// Replaces parts with repeated keys by their sums, as each member's own push would, and lines up
// the keys of all.
Status RoundMerge::AppendUnique(Table& table, std::size_t dim) {
  std::size_t repeated_rows = 0;
  for (const PushSection& part : table.parts) {
    if (part.gradients.size() != part.keys.size() * dim) {
      return Mismatch(part.table, std::to_string(part.keys.size()) + " keys and " +
                                      std::to_string(part.gradients.size()) +
                                      " values, others a width of " + std::to_string(dim));
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

Status RoundMerge::MergeSparse(Table& table, float scale, PushSection& out) {
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
