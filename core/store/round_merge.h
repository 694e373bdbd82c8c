// Gradients of several workers made into one push.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "merge/unique.h"
#include "status/status.h"
#include "table/table_set.h"

namespace sparsefleet {

// What one member brings to a round. The sections speak of memory that stays where it is until the
// round is over: the member's own, or that of `memory`.
struct Contribution {
  std::vector<PushSection> sections;  // each table once
  std::uint64_t step = 0;
  std::string refusal;  // if not empty: why the round must not be applied, for any member
  std::shared_ptr<const void> memory;
};

// Keeps its buffers from round to round. Not thread-safe.
class RoundMerge {
 public:
  // The sum of the contributions, in their order, times one over their number: a table's
  // equal keys, or its elements, are added in order of the contributions. The result points into
  // this object and the contributions. kShapeMismatch where they do not fit one another.
  Result<std::span<const PushSection>> Build(std::span<const Contribution* const> contributions);

 private:
  struct Table {
    std::vector<PushSection> parts;
    UniqueKeys own;     // of a part with repeated keys
    UniqueKeys unique;  // over all parts
    std::vector<Key> keys;
    std::vector<float> part_rows;
    std::vector<float> values;
  };
  static Status MergeDense(Table& table, float scale, PushSection& out);
  static Status MergeSparse(Table& table, float scale, PushSection& out);
  static Status AppendUnique(Table& table, std::size_t dim);

  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<PushSection> merged_;
};

}  // namespace sparsefleet
