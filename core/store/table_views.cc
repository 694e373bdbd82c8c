#include "store/table_views.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "optimizer/kernels.h"

namespace sparsefleet {
namespace {

void AddSparse(const SparseTable& table, const std::string& prefix, StatMap& stats) {
  const SparseStats figures = table.Stats();
  const auto add = [&](const char* name, std::uint64_t value) {
    stats[prefix + name] = static_cast<double>(value);
  };
  add("rows", figures.rows);
  add("candidates", figures.candidates);
  add("memory_bytes", figures.memory_bytes);
  add("payload_bytes", figures.payload_bytes);
  add("rows_pulled", figures.rows_pulled);
  add("rows_pushed", figures.rows_pushed);
  add("rows_created", figures.rows_created);
  add("rows_evicted", figures.rows_evicted);
  add("rejected_non_finite", figures.rejected_non_finite);
  add("not_admitted", figures.not_admitted);
  stats[prefix + "row_squares"] = figures.row_squares;
  add("rows_sampled", figures.rows_sampled);
  stats[prefix + "gradient_squares"] = figures.gradient_squares;
  add("gradients_sampled", figures.gradients_sampled);
  stats[prefix + "learning_rate"] = table.learning_rate();
}

void AddDense(const DenseTable& table, const std::string& prefix, StatMap& stats) {
  stats[prefix + "elements"] = static_cast<double>(table.size());
  stats[prefix + "memory_bytes"] = static_cast<double>(table.memory_bytes());
  stats[prefix + "learning_rate"] = table.learning_rate();
}

}  // namespace

void AddTableStats(const TableSet& tables, StatMap& stats) {
  for (const std::string& name : tables.Names()) {
    const std::string prefix = "table." + name + ".";
    if (auto sparse = tables.Sparse(name); sparse.ok()) {
      AddSparse(*sparse.value(), prefix, stats);
    } else if (auto dense = tables.Dense(name); dense.ok()) {
      AddDense(*dense.value(), prefix, stats);
    }
    if (auto version = tables.Version(name); version.ok()) {
      stats[prefix + "version"] = static_cast<double>(version.value());
    }
  }
}

Result<TableInfo> DescribeTable(const TableSet& tables, std::string_view name) {
  TableInfo info;
  auto sparse = tables.Sparse(name);
  if (sparse.ok()) {
    const SparseTable& table = *sparse.value();
    info.size = table.Stats().rows;
    info.dim = table.dim();
    info.state_dim = table.state_dim();
    info.counter_dim = table.counter_dim();
    info.non_finite = table.spec().non_finite;
    return info;
  }
  if (sparse.status().code() == Code::kUnknownTable) return sparse.status();
  auto dense = tables.Dense(name);
  if (!dense.ok()) return dense.status();
  info.dense = true;
  info.size = dense.value()->spec().size;
  info.state_dim = dense.value()->state_dim();
  info.non_finite = dense.value()->spec().non_finite;
  info.min_block_size = dense.value()->spec().min_block_size;
  return info;
}

Result<PushResult> PushAndNotify(TableSet& tables, Coordinator& coordinator,
                                 std::span<const PushSection> sections, std::uint64_t step,
                                 const TableSet::BeforePush& before) {
  auto result = tables.Push(sections, step, before);
  if (!result.ok()) return result;
  for (const auto& section : sections) {
    auto version = tables.Version(section.table);
    if (version.ok()) coordinator.RaiseVersion(section.table, version.value());
  }
  return result;
}

Result<PushResult> ApplyRound(TableSet& tables, Coordinator& coordinator,
                              std::span<const PushSection> sections, std::uint64_t step,
                              const TableSet::BeforePush& before) {
  auto result = PushAndNotify(tables, coordinator, sections, step, before);
  if (!result.ok() || result.value().rejected_non_finite == 0) return result;
  PushResult counted = result.value();
  for (const auto& section : sections) {
    if (!section.dense) continue;
    auto table = tables.Dense(section.table);
    const bool is_first_part = !table.ok() || table.value()->range().begin == 0;
    const auto all_finite = BestKernels().all_finite;
    if (!is_first_part && !all_finite(section.gradients.data(), section.gradients.size())) {
      --counted.rejected_non_finite;
    }
  }
  return counted;
}

Status CheckWantedValues(const TableSet& tables, std::span<const PushSection> sections) {
  for (const auto& section : sections) {
    if (section.out.empty()) continue;
    std::uint64_t wanted = 0;
    if (section.wants_rows()) {
      auto table = tables.Sparse(section.table);
      if (!table.ok()) return table.status();
      wanted = section.keys.size() * table.value()->dim();
    } else {
      auto table = tables.Dense(section.table);
      if (!table.ok()) return table.status();
      wanted = table.value()->size();
    }
    if (section.out.size() == wanted) continue;
    return {Code::kShapeMismatch, "table '" + std::string(section.table) + "': got room for " +
                                      std::to_string(section.out.size()) +
                                      " values after the push, expected " + std::to_string(wanted)};
  }
  return Status::Ok();
}

Status ReadWantedValues(TableSet& tables, std::span<const PushSection> sections,
                        std::uint64_t step) {
  std::vector<PullSection> wanted;
  for (const auto& section : sections) {
    if (section.out.empty()) continue;
    wanted.push_back({section.table, section.keys, section.out, section.dense, 0});
  }
  return wanted.empty() ? Status::Ok() : tables.Pull(wanted, PullMode::kTrain, step);
}

Status CheckContribution(const TableSet& tables, Contribution& contribution) {
  for (const auto& section : contribution.sections) {
    if (section.add) {
      return {Code::kInvalidArgument, "table '" + std::string(section.table) +
                                          "': a round takes gradients, not values to add"};
    }
  }
  const Status status = tables.CheckPush(contribution.sections);
  if (status.code() != Code::kNonFinite) return status;
  contribution.refusal = status.message();
  contribution.sections.clear();
  return Status::Ok();
}

Result<RowBatch> TakeChangedRows(const SparseTable& table, ChangeCursor& changes, bool begin,
                                 std::uint64_t received, std::size_t max_rows) {
  for (;;) {
    const auto keys = changes.Take(std::exchange(begin, false), received, max_rows);
    auto rows = table.Read(keys);
    if (!rows.ok() || !rows.value().keys.empty() || keys.empty()) return rows;
    changes.DropLast();  // all of them have been removed since
  }
}

}  // namespace sparsefleet
