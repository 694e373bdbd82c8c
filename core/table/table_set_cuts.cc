// Cuts through all tables, and dense tables as a whole.
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>
#include <utility>

#include "table/table_set.h"

namespace sparsefleet {
namespace {

// The memory is touched here rather than while pushes wait.
DenseCut RoomFor(const DenseTable& table) {
  DenseCut cut;
  cut.begin = table.range().begin;
  cut.values.resize(table.size());
  cut.state.resize(table.size() * table.state_dim());
  return cut;
}

}  // namespace

Result<std::map<std::string, AnyCut>> TableSet::OpenCuts(
    bool only_dirty, bool clear_dirty, std::optional<std::vector<std::string>> names,
    bool for_snapshot) {
  std::map<std::string, AnyTable> tables;
  for (const std::string& name : names ? *names : Names()) {
    auto entry = Find(name);
    if (!entry.ok()) return entry.status();
    tables.emplace(name, entry.value().table);
  }
  std::map<std::string, AnyCut> cuts;
  std::vector<std::pair<SparseTable*, TableCut*>> sparse;
  std::vector<std::pair<DenseTable*, DenseCut*>> dense;
  try {
    for (const auto& [name, any] : tables) {
      if (const auto* held = std::get_if<std::shared_ptr<SparseTable>>(&any)) {
        if (Status s = (*held)->CheckCut(only_dirty); !s.ok()) return s;
        const auto place =
            cuts.emplace(name, (*held)->PrepareCut(only_dirty, clear_dirty, for_snapshot)).first;
        sparse.emplace_back(held->get(), &std::get<TableCut>(place->second));
      } else {
        const auto& table = std::get<std::shared_ptr<DenseTable>>(any);
        const auto place = cuts.emplace(name, RoomFor(*table)).first;
        dense.emplace_back(table.get(), &std::get<DenseCut>(place->second));
      }
    }
    std::vector<std::unique_lock<std::shared_mutex>> stopped;
    stopped.reserve(sparse.size());
    const auto alone = gate_.EnterCut();
    for (const auto& [table, cut] : sparse) stopped.push_back(table->StopWriters());
    for (const auto& [table, cut] : sparse) cut->Begin();
    // All writers of dense tables wait for `alone`.
    stopped.clear();
    for (const auto& [table, cut] : dense) {
      if (Status s = table->ReadWithState(0, cut->values, cut->state); !s.ok()) return s;
    }
  } catch (const std::bad_alloc&) {
    return Status(Code::kTooLarge, "out of memory for a cut through all tables");
  }
  return cuts;
}

Status TableSet::WriteDense(std::string_view table, std::span<const float> values) {
  auto found = Dense(table);
  if (!found.ok()) return found.status();
  DenseTable& dense = *found.value();
  if (values.size() != dense.size()) {
    return {Code::kShapeMismatch,
            "dense table '" + dense.spec().name + "' has " + std::to_string(dense.size()) +
                " elements, but the write has " + std::to_string(values.size())};
  }
  const auto writer = gate_.EnterWriter();
  return dense.Write(0, values);
}

Result<DenseCut> TableSet::ReadDensePart(std::string_view table) {
  auto found = Dense(table);
  if (!found.ok()) return found.status();
  try {
    DenseCut cut = RoomFor(*found.value());
    const auto alone = gate_.EnterCut();
    Status s = found.value()->ReadWithState(0, cut.values, cut.state);
    if (!s.ok()) return s;
    return cut;
  } catch (const std::bad_alloc&) {
    return Status(Code::kTooLarge, "table '" + std::string(table) + "': out of memory for a copy");
  }
}

Status TableSet::WriteDensePart(std::string_view table, std::uint64_t begin,
                                std::span<const float> values,
                                std::optional<std::span<const float>> state) {
  auto found = Dense(table);
  if (!found.ok()) return found.status();
  DenseTable& dense = *found.value();
  const DenseRange range = dense.range();
  if (begin < range.begin || begin > range.end || values.size() > range.end - begin) {
    return {Code::kShapeMismatch,
            "dense table '" + dense.spec().name + "': elements " + std::to_string(begin) + " + " +
                std::to_string(values.size()) + " are not among " + std::to_string(range.begin) +
                " to " + std::to_string(range.end) + ", the range held here"};
  }
  const std::uint64_t offset = begin - range.begin;
  const auto writer = gate_.EnterWriter();
  return state ? dense.WriteWithState(offset, values, *state) : dense.Write(offset, values);
}

}  // namespace sparsefleet
