#include "store/gradient_merge.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <latch>
#include <thread>
#include <unordered_map>

#include "optimizer/kernels.h"

namespace sparsefleet {
namespace {

// Elements summed over all contributions while they are in the cache.
constexpr std::size_t kBlock = 4096;
// Floats read by one of several threads: less takes no longer than waking a thread.
constexpr std::size_t kFloatsPerPiece = 1 << 17;
constexpr std::size_t kMaxPieces = 8;
// Floats of a row for each thread beyond the first. All look at the places of all rows and read
// the lines of narrow ones that they share, which costs more than it saves.
constexpr std::size_t kRowFloatsPerPiece = 32;

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

// Calls work(begin, end) for ranges that cover [0, size), at most `max_pieces` of them, on the
// threads of `share`. num_floats: what all of them read.
template <typename Work>
void ForRanges(std::size_t size, std::size_t num_floats, std::size_t max_pieces,
               const GradientMerge::Share& share, const Work& work) {
  static const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const std::size_t most =
      std::min({max_pieces, kMaxPieces, cores, std::max<std::size_t>(size, 1)});
  const std::size_t pieces =
      share ? std::clamp<std::size_t>(num_floats / kFloatsPerPiece, 1, most) : 1;
  if (pieces == 1) return work(std::size_t{0}, size);
  // Owned by the tasks too: count_down() may still run when wait() has returned.
  const auto running = std::make_shared<std::latch>(static_cast<std::ptrdiff_t>(pieces));
  std::vector<std::exception_ptr> failures(pieces);
  std::vector<std::function<void()>> tasks;
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    tasks.emplace_back([&work, &failure = failures[piece], running, begin = size * piece / pieces,
                        end = size * (piece + 1) / pieces] {
      try {
        work(begin, end);
      } catch (...) {
        failure = std::current_exception();
      }
      running->count_down();
    });
  }
  share(std::move(tasks));
  running->wait();
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

// Reads a gradient stored in parts, from front to back.
class PartReader {
 public:
  PartReader(DenseParts parts, std::size_t begin) : parts_(parts), at_(begin) {
    while (part_ < parts_.size() && at_ > parts_[part_].size()) at_ -= parts_[part_++].size();
  }

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

// Sums elements of all gradients, those from `begin` on, into `sum`.
void SumDense(std::span<const DenseParts> gradients, float scale, std::size_t begin,
              std::span<float> sum) {
  std::vector<PartReader> readers;
  readers.reserve(gradients.size());
  for (const DenseParts& gradient : gradients) readers.emplace_back(gradient, begin);
  const RowKernels& kernels = BestKernels();
  const bool is_pair = gradients.size() == 2;
  for (std::size_t at = 0; at < sum.size();) {
    std::size_t length = std::min(kBlock, sum.size() - at);
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
}

// Adds row i of `rows` to row places[i] of the sums, for places whose sums are in `range`, which
// begins with that of row `begin`.
void AddRowsWithin(std::span<const float> rows, std::span<const std::uint32_t> places,
                   std::size_t dim, std::size_t begin, std::span<float> range) {
  const RowKernels& kernels = BestKernels();
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i] < begin) continue;
    const std::size_t at = (places[i] - begin) * dim;
    if (at >= range.size()) continue;
    kernels.add(range.data() + at, rows.data() + i * dim, dim);
  }
}

}  // namespace

Result<std::span<const PushSection>> GradientMerge::Build(
    std::span<const Contribution* const> contributions, const TableNames& summed,
    const Share& share) {
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
    const Status status = first.dense ? MergeDense(table, scale, share, merged_[i])
                                      : MergeSparse(table, scale, share, merged_[i]);
    if (!status.ok()) return status;
  }
  return std::span<const PushSection>(merged_);
}

Status GradientMerge::MergeDense(Table& table, float scale, const Share& share, PushSection& out) {
  const std::size_t size = SizeOfParts(table.parts[0].all_parts());
  std::vector<DenseParts> gradients;
  for (const PushSection& part : table.parts) {
    gradients.push_back(part.all_parts());
    if (const std::size_t found = SizeOfParts(gradients.back()); found != size) {
      return Mismatch(part.table,
                      std::to_string(size) + " and " + std::to_string(found) + " elements");
    }
  }
  const std::span<float> sum = Room(table.values, size);
  ForRanges(size, size * gradients.size(), kMaxPieces, share,
            [&](std::size_t begin, std::size_t end) {
              SumDense(gradients, scale, begin, sum.subspan(begin, end - begin));
            });
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

Status GradientMerge::MergeSparse(Table& table, float scale, const Share& share, PushSection& out) {
  const auto some =
      std::ranges::find_if(table.parts, [](const auto& p) { return !p.keys.empty(); });
  out.keys_are_unique = true;
  if (some == table.parts.end()) return Status::Ok();
  const std::size_t dim = some->gradients.size() / some->keys.size();
  if (dim == 0) return Mismatch(some->table, "keys without values");
  if (Status s = AppendUnique(table, dim); !s.ok()) return s;
  table.unique.Build(table.keys);
  const std::span<float> sum = Room(table.values, table.unique.size() * dim);
  ForRanges(table.unique.size(), table.keys.size() * dim, 1 + dim / kRowFloatsPerPiece, share,
            [&](std::size_t begin, std::size_t end) {
              const std::span<float> range = sum.subspan(begin * dim, (end - begin) * dim);
              std::ranges::fill(range, 0.0F);
              auto places = table.unique.inverse();
              for (const PushSection& part : table.parts) {
                const std::size_t rows = part.gradients.size() / dim;
                AddRowsWithin(part.gradients, places.first(rows), dim, begin, range);
                places = places.subspan(rows);
              }
              Scale(range, scale);
            });
  out.keys = table.unique.keys();
  out.gradients = sum;
  return Status::Ok();
}

}  // namespace sparsefleet
