// The training data that a server has applied for one session: pushes with the same data are not
// applied again.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "table/table_set.h"

namespace sparsefleet {

// Not thread-safe.
class AppliedData {
 public:
  // How much of a push's data was applied before.
  enum class State : std::uint8_t { kNew, kApplied, kMixed };
  State Judge(std::span<const DataMark> marks) const;
  // A later epoch of a stream replaces the earlier one, all of which then counts as applied.
  void Add(std::span<const DataMark> marks);
  // Everything, in order of stream and position.
  std::vector<DataMark> All() const;

 private:
  struct Stream {
    std::uint64_t epoch = 0;
    // Begin to end. Invariant: disjoint, and not adjacent.
    std::map<std::uint64_t, std::uint64_t> ranges;
  };
  State JudgeOne(const DataMark& mark) const;

  std::map<std::uint64_t, Stream> streams_;
};

}  // namespace sparsefleet
