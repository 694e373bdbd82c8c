// Puts the rows of a snapshot into tables, on several threads.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "status/status.h"
#include "sync/team.h"
#include "table/sparse_table.h"

namespace sparsefleet {

// Not thread-safe.
class RowLoader {
 public:
  // Adds rows as TableCut::NextRecords() returns them; they must stay where they are until Load().
  void Add(const std::shared_ptr<SparseTable>& table, std::span<const std::byte> rows);
  // Returns when all rows are there; the first error. Call it once.
  Status Load(Team& team);

 private:
  // By the shard of the first row: a snapshot has the rows of one shard after another.
  using Parts = std::array<std::vector<std::span<const std::byte>>, SparseTable::kRestoredParts>;
  std::map<std::shared_ptr<SparseTable>, Parts> tables_;
};

}  // namespace sparsefleet
