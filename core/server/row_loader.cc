#include "server/row_loader.h"

#include <functional>
#include <mutex>
#include <utility>

namespace sparsefleet {

void RowLoader::Add(const std::shared_ptr<SparseTable>& table, std::span<const std::byte> rows) {
  tables_[table][table->ShardOfRecord(rows)].push_back(rows);
}

Status RowLoader::Load(Team& team) {
  std::vector<std::pair<SparseTable*, const Parts*>> tables;
  for (const auto& [table, parts] : tables_) tables.emplace_back(table.get(), &parts);
  std::mutex mutex;
  Status failure;
  // Calls work(table, its parts, part) for all parts of all tables.
  const auto run = [&](const std::function<Status(SparseTable&, const Parts&, std::size_t)>& work) {
    constexpr std::size_t kParts = SparseTable::kRestoredParts;
    team.Run(tables.size() * kParts, [&](std::size_t i) {
      const auto& [table, parts] = tables[i / kParts];
      Status status = work(*table, *parts, i % kParts);
      if (status.ok()) return;
      const std::lock_guard lock(mutex);
      if (failure.ok()) failure = std::move(status);
    });
  };
  run([](SparseTable& table, const Parts& parts, std::size_t part) {
    for (const auto rows : parts[part]) {
      if (Status s = table.RestoreRecords(rows); !s.ok()) return s;
    }
    return Status::Ok();
  });
  run([](SparseTable& table, const Parts&, std::size_t part) { return table.IndexRestored(part); });
  return failure;
}

}  // namespace sparsefleet
