#include "server/session.h"

#include <cstdio>
#include <utility>

#include "sync/mutex.h"

namespace sparsefleet {
namespace {

Status NoCut(const std::string& client, std::uint64_t id) {
  return {Code::kNotFound, "client '" + client + "' has no open cut " + std::to_string(id)};
}

}  // namespace

Session::Session(std::uint64_t id, std::uint64_t number, std::string name, TimePoint now)
    : id_(id), number_(number), name_(std::move(name)), began_(now), last_seen_(now) {}

std::string Session::Describe() const {
  MutexLock lock(mutex_);
  return "client '" + name_ + "' (" + address_ + ")";
}

std::string Session::DescribeLoss(TimePoint now, double peer_timeout_s) const {
  char silence[48];
  std::snprintf(silence, sizeof(silence), "silent for %.3g s",
                std::chrono::duration<double>(now - last_seen()).count());
  if (grace_s() <= peer_timeout_s) return silence;
  return std::string(silence) +
         (times_expected() > 0 ? "; its launcher restarted it, but no longer reports on it"
                               : ", and no process took its place (SPARSEFLEET_FAILOVER_WAIT_S)");
}

void Session::SetAddress(const std::string& address) {
  MutexLock lock(mutex_);
  address_ = address;
}

Result<std::uint64_t> Session::AddCut(TableCut cut, std::size_t row_bytes) {
  MutexLock lock(mutex_);
  if (cuts_.size() >= kMaxCuts) {
    return Status(Code::kTooLarge, "client '" + name_ + "' has " + std::to_string(kMaxCuts) +
                                       " open cuts, which is the limit");
  }
  const std::uint64_t id = next_cut_++;
  cuts_.emplace(id, std::make_shared<SessionCut>(std::move(cut), row_bytes));
  return id;
}

Result<std::shared_ptr<SessionCut>> Session::FindCut(std::uint64_t id) const {
  MutexLock lock(mutex_);
  const auto it = cuts_.find(id);
  if (it == cuts_.end()) return NoCut(name_, id);
  return it->second;
}

Status Session::CloseCut(std::uint64_t id) {
  std::shared_ptr<SessionCut> closed;  // freed outside the lock, as it may hold many rows
  MutexLock lock(mutex_);
  const auto it = cuts_.find(id);
  if (it == cuts_.end()) return NoCut(name_, id);
  closed = std::move(it->second);
  cuts_.erase(it);
  return Status::Ok();
}

AppliedData::State Session::Judge(std::span<const DataMark> marks) const {
  MutexLock lock(mutex_);
  return applied_.Judge(marks);
}

void Session::Remember(std::span<const DataMark> marks) {
  MutexLock lock(mutex_);
  applied_.Add(marks);
}

std::vector<DataMark> Session::Marks() const {
  MutexLock lock(mutex_);
  return applied_.All();
}

std::map<std::string, std::vector<Key>> Session::Watches() const {
  MutexLock lock(mutex_);
  std::map<std::string, std::vector<Key>> all;
  for (const auto& [table, changes] : watches_) all.emplace(table, changes->Pending());
  return all;
}

std::shared_ptr<ChangeCursor> Session::Watch(SparseTable& table) {
  const std::string& name = table.spec().name;
  MutexLock lock(mutex_);
  const auto it = watches_.find(name);
  if (it != watches_.end()) return it->second;
  return watches_.emplace(name, table.WatchChanges()).first->second;
}

Result<std::shared_ptr<ChangeCursor>> Session::FindWatch(std::string_view table) const {
  MutexLock lock(mutex_);
  const auto it = watches_.find(table);
  if (it != watches_.end()) return it->second;
  return Status(Code::kNotFound,
                "client '" + name_ + "' does not watch the changes of table '" +
                    std::string(table) +
                    "': watch them first, and again after the client was considered lost");
}

void Session::DropHoldings() {
  std::map<std::uint64_t, std::shared_ptr<SessionCut>> closed;
  std::map<std::string, std::shared_ptr<ChangeCursor>, std::less<>> ended;
  MutexLock lock(mutex_);
  closed.swap(cuts_);
  ended.swap(watches_);
}

}  // namespace sparsefleet
