// Changes of a table on all servers: watched, and taken server by server.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "client/call.h"
#include "client/client.h"
#include "client/client_core.h"
#include "client/table_lookup.h"
#include "sync/mutex.h"

namespace sparsefleet {
namespace {

class ClientChanges final : public StoreCut {
 public:
  ClientChanges(std::shared_ptr<ClientCore> core, std::string table,
                std::shared_ptr<WatchedTable> watched, double timeout_s)
      : core_(std::move(core)),
        table_(std::move(table)),
        watched_(std::move(watched)),
        timeout_s_(timeout_s) {}

  // The servers choose the number of rows per chunk.
  Result<bool> Next(std::size_t /*max_rows*/, RowBatch& out) override;

 private:
  Result<RowBatch> NextOf(std::uint32_t server);

  const std::shared_ptr<ClientCore> core_;
  const std::string table_;
  const std::shared_ptr<WatchedTable> watched_;
  const double timeout_s_;
  std::uint32_t server_ = 0;  // the server whose rows are being read
  bool begins_ = true;        // the next request is the first to that server
};

Result<bool> ClientChanges::Next(std::size_t /*max_rows*/, RowBatch& out) {
  out.clear();
  for (; server_ < core_->num_servers(); ++server_, begins_ = true) {
    auto rows = NextOf(server_);
    if (!rows.ok()) {
      server_ = core_->num_servers();
      return rows.status();
    }
    begins_ = false;
    if (rows.value().keys.empty()) continue;
    out = std::move(rows).value();
    return true;
  }
  return false;
}

Result<RowBatch> ClientChanges::NextOf(std::uint32_t server) {
  MutexLock lock(watched_->mutex);
  TableRequest request{table_};
  request.number = watched_->received[server];
  request.flags = begins_ ? kFlagBeginTaking : 0;
  const CallSpec spec{MessageType::kTakeChanges, TableSubject(table_), "taking its changes from",
                      timeout_s_};
  auto reply = CallOne(*core_, spec, server, Encode(request));
  if (!reply.ok()) return reply.status();
  auto named = DecodeRows(reply.value());
  if (!named.ok()) return named.status().WithPrefix(spec.subject);
  if (!named.value().rows.keys.empty()) ++watched_->received[server];
  return std::move(named).value().rows;
}

}  // namespace

Status Client::WatchChanges(std::string_view table, double timeout_s) {
  const CallClock clock(timeout_s);
  if (auto info = FindTable(*core_, table, false, clock); !info.ok()) return info.status();
  const auto watched = core_->watched.Get(table, core_->num_servers());
  MutexLock lock(watched->mutex);
  const CallSpec spec{MessageType::kWatchChanges, TableSubject(table), "watching its changes on",
                      clock.left_s()};
  auto replies = CallAll(*core_, spec, Encode(TableRequest{table}));
  if (!replies.ok()) return replies.status();
  for (std::size_t server = 0; server < replies.value().size(); ++server) {
    auto taken = DecodeNumber(replies.value()[server]);
    if (!taken.ok()) return taken.status().WithPrefix(spec.subject);
    // Lower than what was received: the server had dropped the watch and started over.
    std::uint64_t& received = watched->received[server];
    received = std::min(received, taken.value());
  }
  return Status::Ok();
}

Result<std::unique_ptr<StoreCut>> Client::TakeChanges(std::string_view table, double timeout_s) {
  const CallClock clock(timeout_s);
  if (auto info = FindTable(*core_, table, false, clock); !info.ok()) return info.status();
  return std::unique_ptr<StoreCut>(std::make_unique<ClientChanges>(
      core_, std::string(table), core_->watched.Get(table, core_->num_servers()), timeout_s));
}

}  // namespace sparsefleet
