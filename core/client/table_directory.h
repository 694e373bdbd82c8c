// What a client knows about tables, from defining them or asking for them.
// Thread-safe.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "store/store.h"
#include "sync/mutex.h"

namespace sparsefleet {

class TableDirectory {
 public:
  std::optional<TableInfo> Find(std::string_view name) const {
    ReaderLock lock(mutex_);
    const auto found = tables_.find(name);
    if (found == tables_.end()) return std::nullopt;
    return found->second;
  }
  // A table keeps its shape while its servers live; its number of rows is not kept current.
  void Put(std::string_view name, const TableInfo& info) {
    WriterLock lock(mutex_);
    tables_.insert_or_assign(std::string(name), info);
  }

 private:
  mutable SharedMutex mutex_;
  std::map<std::string, TableInfo, std::less<>> tables_ GUARDED_BY(mutex_);
};

}  // namespace sparsefleet
