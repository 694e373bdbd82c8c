// Table operations shared by LocalStore and Server, so that both behave alike.
#pragma once

#include <string_view>

#include "store/coordinator.h"
#include "store/gradient_merge.h"
#include "store/store.h"
#include "table/change_log.h"
#include "table/table_set.h"

namespace sparsefleet {

// Adds "table.<name>.<figure>" for every table: all fields of SparseStats for a sparse one,
// elements and memory_bytes for a dense one, version and learning_rate for both.
void AddTableStats(const TableSet& tables, StatMap& stats);

// The shape of table `name` (dense: the part held here); kUnknownTable listing the existing tables.
Result<TableInfo> DescribeTable(const TableSet& tables, std::string_view name);

// TableSet::Push, then notifies those waiting for the tables' versions.
Result<PushResult> PushAndNotify(TableSet& tables, Coordinator& coordinator,
                                 std::span<const PushSection> sections, std::uint64_t step,
                                 const TableSet::BeforePush& before = {});

// For sections with `out`: kShapeMismatch unless it has room for all values of a dense table, or
// for one row per key.
Status CheckWantedValues(const TableSet& tables, std::span<const PushSection> sections);
// Call after the push with this step. REQUIRES: CheckWantedValues() is ok.
Status ReadWantedValues(TableSet& tables, std::span<const PushSection> sections,
                        std::uint64_t step);

// PushAndNotify for the merged gradients of a round. A skipped dense push is counted only where the
// table begins, because each member sums what the servers report.
Result<PushResult> ApplyRound(TableSet& tables, Coordinator& coordinator,
                              std::span<const PushSection> sections, std::uint64_t step,
                              const TableSet::BeforePush& before = {});

// Checks a member's contribution to a round. Non-finite gradients that a table rejects become the
// contribution's refusal, which ends the round for all; any other error is this member's alone.
Status CheckContribution(const TableSet& tables, Contribution& contribution);

// The next rows of ChangeCursor::Take(); empty at the end.
Result<RowBatch> TakeChangedRows(const SparseTable& table, ChangeCursor& changes, bool begin,
                                 std::uint64_t received, std::size_t max_rows);

}  // namespace sparsefleet
