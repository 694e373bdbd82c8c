#include "server/session_table.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace sparsefleet {
namespace {

std::string NameOf(const HelloRequest& hello) {
  if (!hello.client_name.empty()) {
    // It goes into log lines: nothing in it may end one or upset a terminal.
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
  std::lock_guard lock(mutex_);
  Entry& entry = entries_[hello.client_id];
  if (entry.session == nullptr) {
    entry.session = std::make_shared<Session>(hello.client_id, next_number_++, NameOf(hello), now);
    entry.session->SetAddress(address);
  }
  ++entry.connections;
  if (hello.control) {
    entry.has_heartbeats = true;
    entry.session->SetAddress(address);
  }
  entry.session->Touch(now);
  return {entry.session, std::exchange(entry.lost, false)};
}

void SessionTable::Leave(const Session& session, TimePoint now) {
  std::lock_guard lock(mutex_);
  const auto it = entries_.find(session.id());
  if (it == entries_.end() || it->second.session.get() != &session) return;
  --it->second.connections;
  if (!it->second.lost) it->second.session->Touch(now);
}

void SessionTable::End(const Session& session) {
  std::lock_guard lock(mutex_);
  const auto it = entries_.find(session.id());
  if (it != entries_.end() && it->second.session.get() == &session) entries_.erase(it);
}

std::vector<std::shared_ptr<Session>> SessionTable::TakeLost(TimePoint now) {
  std::vector<std::shared_ptr<Session>> lost;
  std::lock_guard lock(mutex_);
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = it->second;
    const auto silent = now - entry.session->last_seen();
    if (entry.lost && entry.connections == 0 && silent > peer_timeout_ + kForgetAfter) {
      it = entries_.erase(it);
      continue;
    }
    // One whose heartbeats have not begun may be on its way to them still.
    const bool judged = entry.has_heartbeats || entry.connections == 0;
    if (!entry.lost && silent > (judged ? peer_timeout_ : kGraceBeforeHeartbeats * peer_timeout_)) {
      entry.lost = true;
      lost.push_back(entry.session);
    }
    ++it;
  }
  return lost;
}

bool SessionTable::HasNamed(std::string_view name) const {
  std::lock_guard lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return !entry.second.lost && entry.second.session->name() == name;
  });
}

std::size_t SessionTable::size() const {
  std::lock_guard lock(mutex_);
  std::size_t here = 0;
  for (const auto& [id, entry] : entries_) here += entry.lost ? 0 : 1;
  return here;
}

}  // namespace sparsefleet
