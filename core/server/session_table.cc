#include "server/session_table.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "sync/mutex.h"

namespace sparsefleet {
namespace {

std::string NameOf(const HelloRequest& hello) {
  if (!hello.client_name.empty()) {
    // The name appears in log lines: it must not end one or corrupt a terminal.
    std::string name = hello.client_name;
    for (char& letter : name) letter = letter < ' ' || letter > '~' ? '?' : letter;
    return name;
  }
  char text[32];
  std::snprintf(text, sizeof(text), "client-%016llx",
                static_cast<unsigned long long>(hello.client_id));
  return text;
}

}  // namespace

SessionTable::Joined SessionTable::Join(const HelloRequest& hello, const std::string& address,
                                        TimePoint now) {
  MutexLock joining(coming_or_going_);
  MutexLock lock(mutex_);
  Entry& entry = entries_[hello.client_id];
  const bool is_new = entry.session == nullptr;
  if (is_new) {
    entry.session = std::make_shared<Session>(hello.client_id, next_number_++, NameOf(hello), now);
    entry.session->SetAddress(address);
  }
  ++entry.connections;
  if (hello.control) {
    entry.has_heartbeats = true;
    entry.session->SetAddress(address);
  }
  entry.session->Touch(now);
  return {entry.session, std::exchange(entry.lost, false), is_new};
}

void SessionTable::Leave(const Session& session, TimePoint now) {
  MutexLock lock(mutex_);
  const auto it = entries_.find(session.id());
  if (it == entries_.end() || it->second.session.get() != &session) return;
  --it->second.connections;
  if (!it->second.lost) it->second.session->Touch(now);
}

void SessionTable::End(const Session& session) {
  MutexLock lock(mutex_);
  const auto it = entries_.find(session.id());
  if (it != entries_.end() && it->second.session.get() == &session) entries_.erase(it);
}

void SessionTable::DropLost(TimePoint now, const std::function<void(Session&)>& drop) {
  MutexLock dropping(coming_or_going_);
  for (const auto& session : TakeLost(now)) drop(*session);
}

void SessionTable::DropNamed(std::string_view name, const std::function<void(Session&)>& drop) {
  MutexLock dropping(coming_or_going_);
  std::vector<std::shared_ptr<Session>> ended;
  {
    MutexLock lock(mutex_);
    for (auto& [id, entry] : entries_) {
      if (entry.session->name() == name && !std::exchange(entry.lost, true)) {
        ended.push_back(entry.session);
      }
    }
  }
  for (const auto& session : ended) drop(*session);
}

std::size_t SessionTable::ExpectNamed(std::string_view name, TimePoint now) {
  MutexLock lock(mutex_);
  std::size_t expected = 0;
  for (auto& [id, entry] : entries_) {
    if (entry.session->name() != name || entry.lost || entry.connections > 0) continue;
    entry.session->ExpectBack(now);
    ++expected;
  }
  return expected;
}

std::vector<std::shared_ptr<Session>> SessionTable::TakeLost(TimePoint now) {
  std::vector<std::shared_ptr<Session>> lost;
  MutexLock lock(mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = it->second;
    const auto silent = now - entry.session->last_seen();
    // What data was applied must be known to whoever takes over the rest of it, however late.
    if (entry.lost && entry.connections == 0 && silent > peer_timeout_ + kForgetAfter &&
        entry.session->Marks().empty()) {
      it = entries_.erase(it);
      continue;
    }
    // A client without heartbeats may still be about to start them.
    const bool judged = entry.has_heartbeats || entry.connections == 0;
    const std::chrono::duration<double> grace(entry.session->grace_s());
    if (!entry.lost && silent > (judged ? peer_timeout_ : kGraceBeforeHeartbeats * peer_timeout_) &&
        silent > grace) {
      entry.lost = true;
      lost.push_back(entry.session);
    }
    ++it;
  }
  return lost;
}

std::vector<std::shared_ptr<Session>> SessionTable::All() const {
  MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Session>> all;
  for (const auto& [id, entry] : entries_) all.push_back(entry.session);
  return all;
}

std::shared_ptr<Session> SessionTable::Find(std::uint64_t id) const {
  MutexLock lock(mutex_);
  const auto it = entries_.find(id);
  return it == entries_.end() ? nullptr : it->second.session;
}

std::shared_ptr<Session> SessionTable::Restore(std::uint64_t id, std::uint64_t number,
                                               const std::string& name, TimePoint now) {
  MutexLock lock(mutex_);
  next_number_ = std::max(next_number_, number + 1);
  Entry& entry = entries_[id];
  if (entry.session == nullptr || entry.session->number() != number) {
    entry = {};
    // The session started before anything that the server can remember.
    entry.session = std::make_shared<Session>(id, number, name, TimePoint());
    entry.session->SetAddress("before a restart");
  }
  entry.session->Touch(now);
  return entry.session;
}

void SessionTable::Remove(std::uint64_t id) {
  MutexLock lock(mutex_);
  entries_.erase(id);
}

bool SessionTable::HasNamed(std::string_view name) const {
  MutexLock lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return !entry.second.lost && entry.second.session->name() == name;
  });
}

bool SessionTable::HasId(std::uint64_t id) const {
  MutexLock lock(mutex_);
  const auto it = entries_.find(id);
  return it != entries_.end() && !it->second.lost;
}

bool SessionTable::HasNumber(std::uint64_t number) const {
  MutexLock lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return !entry.second.lost && entry.second.session->number() == number;
  });
}

std::size_t SessionTable::size() const {
  MutexLock lock(mutex_);
  std::size_t here = 0;
  for (const auto& [id, entry] : entries_) here += entry.lost ? 0 : 1;
  return here;
}

}  // namespace sparsefleet
