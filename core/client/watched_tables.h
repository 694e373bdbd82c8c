// Chunks of changed rows that a client has received, by table and server. Header only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sync/mutex.h"
#include "table/sparse_table.h"

namespace sparsefleet {

// `mutex` is held during a request for changed rows: the server compares what it sent with what was
// received, so only one may run at a time.
struct WatchedTable {
  explicit WatchedTable(std::size_t num_servers) : received(num_servers) {}
  Mutex mutex;
  std::vector<std::uint64_t> received GUARDED_BY(mutex);  // by server
  // Received and not handed out yet. They outlive the iteration that asked for them, because
  // servers do not send them again.
  std::deque<RowBatch> chunks GUARDED_BY(mutex);
};

// Thread-safe.
class WatchedTables {
 public:
  std::shared_ptr<WatchedTable> Get(std::string_view table, std::size_t num_servers) {
    MutexLock lock(mutex_);
    auto it = tables_.find(table);
    if (it == tables_.end()) {
      it = tables_.emplace(std::string(table), std::make_shared<WatchedTable>(num_servers)).first;
    }
    return it->second;
  }

 private:
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<WatchedTable>, std::less<>> tables_ GUARDED_BY(mutex_);
};

}  // namespace sparsefleet
