// What LocalStore and Server both do with tables, so that they do it alike.
#pragma once

#include <string_view>

#include "store/store.h"
#include "table/table_set.h"

namespace sparsefleet {

// Adds "table.<name>.<figure>" for every table: all fields of SparseStats for a sparse one;
// elements and memory_bytes for a dense one; version and learning_rate for both.
void AddTableStats(const TableSet& tables, StatMap& stats);

// What table `name` looks like from outside (dense: the part held here); kUnknownTable naming the
// tables there are.
Result<TableInfo> DescribeTable(const TableSet& tables, std::string_view name);

// Replaces all values of a dense table; kShapeMismatch unless `values` has its size.
Status WriteWholeDense(DenseTable& table, std::span<const float> values);

}  // namespace sparsefleet
