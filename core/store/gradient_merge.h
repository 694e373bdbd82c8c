// Merges the gradients of several mini-batches or workers into one push.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "merge/unique.h"
#include "status/status.h"
#include "table/table_set.h"

namespace sparsefleet {

// The gradients of one mini-batch, or of one member of a round. The sections point to memory, the
// caller's or that of `memory`, which must not change until the merged push has been applied.
struct Contribution {
  std::vector<PushSection> sections;  // at most one per table
  std::uint64_t step = 0;
  std::string refusal;  // if not empty: why the round must be rejected for all members
  std::shared_ptr<const void> memory;
  // For the log of rounds: the request it came with, and what to do once it is applied.
  std::vector<std::byte> request = {};
  std::function<void(const PushResult&)> on_applied = {};
  // For a sender: the data it comes from, and whether it must not be merged with others, since some
  // servers have applied that data.
  std::vector<DataMark> marks = {};
  bool alone = false;
};

using TableNames = std::set<std::string, std::less<>>;

// Reuses its buffers from merge to merge. Not thread-safe.
class GradientMerge {
 public:
  // Runs tasks on several threads, this one included. Returns when none is left to start.
  using Share = std::function<void(std::vector<std::function<void()>>)>;

  // Adds up the contributions and, except for the tables in `summed`, multiplies the sum by one
  // over the number of contributions: the mean. Gradients of equal keys, and dense elements, are
  // added in the order of the contributions. A single contribution is returned unchanged. The
  // values after the push go to the last `out` that a contribution has for the table. The result
  // points into this object and the contributions, and is valid until the next Build().
  // kShapeMismatch if the contributions disagree about the width, size or kind of a table. With
  // `share`, several threads add up large gradients: each takes some rows or elements of all
  // contributions, so that sums are bit-identical for any number of threads.
  Result<std::span<const PushSection>> Build(std::span<const Contribution* const> contributions,
                                             const TableNames& summed = {},
                                             const Share& share = {});

 private:
  struct Table {
    std::vector<PushSection> parts;
    UniqueKeys own;     // of one part with repeated keys
    UniqueKeys unique;  // over all parts
    std::vector<Key> keys;
    std::vector<float> part_rows;
    std::vector<float> values;
  };
  static Status MergeDense(Table& table, float scale, const Share& share, PushSection& out);
  static Status MergeSparse(Table& table, float scale, const Share& share, PushSection& out);
  static Status AppendUnique(Table& table, std::size_t dim);

  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<PushSection> merged_;
};

}  // namespace sparsefleet
