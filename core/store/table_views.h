// What LocalStore and Server both do with tables, so that they do it alike.
#pragma once

#include <string_view>

#include "store/coordinator.h"
#include "store/round_merge.h"
#include "store/store.h"
#include "table/change_set.h"
#include "table/table_set.h"

namespace sparsefleet {

// Adds "table.<name>.<figure>" for every table: all fields of SparseStats for a sparse one;
// elements and memory_bytes for a dense one; version and learning_rate for both.
void AddTableStats(const TableSet& tables, StatMap& stats);

// What table `name` looks like from outside (dense: the part held here); kUnknownTable naming the
// tables there are.
Result<TableInfo> DescribeTable(const TableSet& tables, std::string_view name);

// TableSet::Push, and who waits for the tables' versions is told.
Result<PushResult> PushAndTell(TableSet& tables, Coordinator& coordinator,
                               std::span<const PushSection> sections, std::uint64_t step);

// Of sections with `out`: kShapeMismatch unless it has room for all values of a dense table, or for
// a row a key.
Status CheckWantedValues(const TableSet& tables, std::span<const PushSection> sections);
// After the push with this step. REQUIRES: CheckWantedValues() is ok.
Status ReadWantedValues(TableSet& tables, std::span<const PushSection> sections,
                        std::uint64_t step);

// PushAndTell for the merged gradients of a round. A dense push that is skipped counts where the
// table begins alone: each member adds up what the servers say.
Result<PushResult> ApplyRound(TableSet& tables, Coordinator& coordinator,
                              std::span<const PushSection> sections, std::uint64_t step);

// Checks what a member brings to a round. Gradients that a table refuses for NaN or infinity make
// it a refusal, which all members are to hear of; anything else is this member's error alone.
Status CheckContribution(const TableSet& tables, Contribution& contribution);

// The next rows of ChangeSet::Take(); none at the end.
Result<RowBatch> TakeChangedRows(const SparseTable& table, ChangeSet& changes, bool begin,
                                 std::uint64_t received, std::size_t max_rows);

}  // namespace sparsefleet
