// Changes of a table on all servers: watched, and taken from all of them at once.
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
        timeout_s_(timeout_s) {
    for (std::uint32_t server = 0; server < core_->num_servers(); ++server) open_.push_back(server);
  }

  // The servers choose the number of rows per chunk.
  Result<bool> Next(std::size_t /*max_rows*/, RowBatch& out) override;

 private:
  // Asks each server that may have more for a chunk.
  Status Fetch() REQUIRES(watched_->mutex);

  const std::shared_ptr<ClientCore> core_;
  const std::string table_;
  const std::shared_ptr<WatchedTable> watched_;
  const double timeout_s_;
  std::vector<std::uint32_t> open_;  // servers that may have more
  bool begins_ = true;               // the next request is the first
};

Result<bool> ClientChanges::Next(std::size_t /*max_rows*/, RowBatch& out) {
  out.clear();
  MutexLock lock(watched_->mutex);
  while (watched_->chunks.empty() && !open_.empty()) {
    if (Status s = Fetch(); !s.ok()) {
      open_.clear();
      return s;
    }
  }
  if (watched_->chunks.empty()) return false;
  out = std::move(watched_->chunks.front());
  watched_->chunks.pop_front();
  return true;
}

Status ClientChanges::Fetch() {
  std::vector<ServerPart> parts;
  std::vector<bool> is_bf16;  // by part
  for (const std::uint32_t server : open_) {
    TableRequest request{table_};
    request.number = watched_->received[server];
    is_bf16.push_back(core_->SendsBf16(server));
    request.flags = (begins_ ? kFlagBeginTaking : 0) | (is_bf16.back() ? kFlagTakeBf16 : 0);
    parts.emplace_back(server, Encode(request));
  }
  const CallSpec spec{MessageType::kTakeChanges, TableSubject(table_), "taking its changes from",
                      timeout_s_};
  if (Status s = RunCall(*core_, spec, parts); !s.ok()) return s;
  begins_ = false;
  std::vector<RowBatch> received;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    auto named = DecodeRows(parts[i].reply.body, is_bf16[i]);
    if (!named.ok()) return named.status().WithPrefix(spec.subject);
    received.push_back(std::move(named).value().rows);
  }
  open_.clear();
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (received[i].keys.empty()) continue;
    ++watched_->received[parts[i].server];
    watched_->chunks.push_back(std::move(received[i]));
    open_.push_back(parts[i].server);
  }
  return Status::Ok();
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
