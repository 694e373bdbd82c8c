// How many chunks of changed rows a client has received, by table and server. Header only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace sparsefleet {

// `mutex` is held over a request for changed rows: the server compares what it has handed out with
// what has been received, so there is one at a time.
struct WatchedTable {
  std::mutex mutex;
  std::vector<std::uint64_t> received;  // by server
};

// Thread-safe.
class WatchedTables {
 public:
  std::shared_ptr<WatchedTable> Get(std::string_view table, std::size_t num_servers) {
    std::lock_guard lock(mutex_);
    auto it = tables_.find(table);
    if (it == tables_.end()) {
      it = tables_.emplace(std::string(table), std::make_shared<WatchedTable>()).first;
      it->second->received.resize(num_servers);
    }
    return it->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<WatchedTable>, std::less<>> tables_;
};

}  // namespace sparsefleet
