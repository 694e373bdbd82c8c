// What a client knows of tables: from their definition, or from having asked.
// Thread-safe.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>

#include "store/store.h"

namespace sparsefleet {

class TableDirectory {
 public:
  std::optional<TableInfo> Find(std::string_view name) const {
    std::shared_lock lock(mutex_);
    const auto found = tables_.find(name);
    if (found == tables_.end()) return std::nullopt;
    return found->second;
  }
  // A table keeps its shape for as long as its servers live; rows it has by now do not count.
  void Put(std::string_view name, const TableInfo& info) {
    std::lock_guard lock(mutex_);
    tables_.insert_or_assign(std::string(name), info);
  }

 private:
  mutable std::shared_mutex mutex_;
  std::map<std::string, TableInfo, std::less<>> tables_;
};

}  // namespace sparsefleet
