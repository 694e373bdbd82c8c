#include "store/coordinator.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "store/round_log.h"
#include "sync/mutex.h"

namespace sparsefleet {
namespace {

using TimePoint = Coordinator::TimePoint;

std::string Seconds(TimePoint since, TimePoint deadline) {
  char text[32];
  const double seconds = std::chrono::duration<double>(deadline - since).count();
  std::snprintf(text, sizeof(text), "%.3g s", std::max(0.0, seconds));
  return text;
}

std::string Quoted(const char* what, std::string_view name) {
  return std::string(what) + " '" + std::string(name) + "'";
}

// "worker-0, worker-2 x2": who arrived, naming an owner with several calls once.
template <typename Members>
std::string NamesOf(const Members& members) {
  std::map<std::string, int> counted;
  for (const auto& [ticket, member] : members) ++counted[member.wait.owner.name];
  std::string text;
  for (const auto& [name, count] : counted) {
    if (!text.empty()) text += ", ";
    text += name;
    if (count > 1) text += " x" + std::to_string(count);
  }
  return text;
}

// Moves the elements that match `goes` out of `from`, keeping the order of the others.
template <typename Container, typename Predicate>
std::vector<typename Container::value_type> Extract(Container& from, Predicate goes) {
  std::vector<typename Container::value_type> gone;
  for (auto it = from.begin(); it != from.end();) {
    if (goes(*it)) {
      gone.push_back(std::move(*it));
      it = from.erase(it);
    } else {
      ++it;
    }
  }
  return gone;
}

Status GivenUp(std::string_view barrier, const Coordinator::Owner& owner) {
  return {Code::kPeerLost,
          Quoted("barrier", barrier) + ": '" + owner.name + "' has abandoned this call"};
}

Status CheckNote(std::string_view key, std::string_view value) {
  if (key.empty() || key.size() > kMaxNoteKeyBytes) {
    return {Code::kInvalidArgument, "note key of " + std::to_string(key.size()) +
                                        " bytes, expected 1 to " +
                                        std::to_string(kMaxNoteKeyBytes)};
  }
  if (value.size() > kMaxNoteValueBytes) {
    return {Code::kTooLarge, Quoted("note", key) + " has " + std::to_string(value.size()) +
                                 " bytes, but the limit is " + std::to_string(kMaxNoteValueBytes)};
  }
  return Status::Ok();
}

}  // namespace

void Coordinator::Run(Calls& calls) const {
  if (share_ && calls.size() >= kSharedTasks) return share_(std::move(calls));
  for (auto& call : calls) call();
}

void Coordinator::ArriveAtBarrier(std::string_view name, std::uint32_t members, Owner owner,
                                  std::uint64_t ticket, TimePoint deadline, Done done) {
  if (members == 0) {
    return done(
        {Code::kInvalidArgument, Quoted("barrier", name) + " has 0 members, expected >= 1"});
  }
  Tickets complete;
  {
    MutexLock lock(mutex_);
    if (closed_) {
      const Status status = close_status_;
      lock.unlock();
      return done(status);
    }
    // The request arrived after its caller withdrew it.
    if (const auto bound = given_up_.find(owner.id);
        bound != given_up_.end() && ticket < bound->second) {
      lock.unlock();
      return done(GivenUp(name, owner));
    }
    auto it = barriers_.find(name);
    if (it == barriers_.end()) it = barriers_.emplace(std::string(name), BarrierState{}).first;
    BarrierState& barrier = it->second;
    if (barrier.arrived.empty()) barrier.members = members;
    if (barrier.members != members) {
      const Status status(
          Code::kInvalidArgument,
          Quoted("barrier", name) + ": this call expects " + std::to_string(members) +
              " members, but the " + std::to_string(barrier.arrived.size()) + " already there (" +
              NamesOf(barrier.arrived) + ") expect " + std::to_string(barrier.members));
      lock.unlock();
      return done(status);
    }
    const std::pair key(owner.id, ticket);
    barrier.arrived.insert_or_assign(
        key,
        Member{{std::move(owner), std::chrono::steady_clock::now(), deadline}, std::move(done)});
    if (barrier.arrived.size() < barrier.members) return;
    complete = std::move(barrier.arrived);
    barriers_.erase(it);
  }
  Status logged;
  if (log_ != nullptr) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> members_done;
    for (const auto& [owner_and_ticket, member] : complete) {
      members_done.push_back(owner_and_ticket);
    }
    logged = log_->OnBarrier(members_done);
  }
  Calls calls;
  calls.reserve(complete.size());
  for (auto& [owner_and_ticket, member] : complete) {
    calls.push_back([done = std::move(member.done), logged] { done(logged); });
  }
  Run(calls);
}

Status Coordinator::PutNote(std::string_view key, std::string_view value) {
  if (Status s = CheckNote(key, value); !s.ok()) return s;
  std::list<NoteWait> waits;
  {
    MutexLock lock(mutex_);
    if (closed_) return close_status_;
    auto it = notes_.find(key);
    if (it != notes_.end()) {
      it->second = value;
    } else if (notes_.size() >= kMaxNotes) {
      return {Code::kTooLarge, Quoted("note", key) + ": there are " + std::to_string(kMaxNotes) +
                                   " notes already, which is the limit"};
    } else {
      notes_.emplace(std::string(key), std::string(value));
    }
    if (auto waiting = note_waits_.find(key); waiting != note_waits_.end()) {
      waits = std::move(waiting->second);
      note_waits_.erase(waiting);
    }
  }
  // Not shared: a server writes notes while holding the gate of its log, where this thread must not
  // run other tasks, which may enter the gate themselves.
  for (auto& wait : waits) wait.done(std::string(value));
  return Status::Ok();
}

void Coordinator::GetNote(std::string_view key, bool wait, Owner owner, TimePoint deadline,
                          NoteDone done) {
  MutexLock lock(mutex_);
  if (closed_) {
    const Status status = close_status_;
    lock.unlock();
    return done(status);
  }
  if (auto it = notes_.find(key); it != notes_.end()) {
    std::string value = it->second;
    lock.unlock();
    return done(std::move(value));
  }
  if (!wait) {
    lock.unlock();
    return done(Status(Code::kNotFound, "no " + Quoted("note", key)));
  }
  note_waits_[std::string(key)].push_back(
      {{std::move(owner), std::chrono::steady_clock::now(), deadline}, std::move(done)});
}

Result<std::vector<std::optional<std::string>>> Coordinator::GetNotes(
    std::span<const std::string_view> keys, std::uint64_t max_bytes) const {
  std::vector<std::optional<std::string>> values;
  values.reserve(keys.size());
  MutexLock lock(mutex_);
  if (closed_) return close_status_;
  std::uint64_t bytes = 0;
  for (const std::string_view key : keys) {
    const auto it = notes_.find(key);
    if (it != notes_.end()) bytes += it->second.size();
    if (bytes > max_bytes) {  // before they are copied: a key may be named many times
      return Status(Code::kTooLarge, "get notes: the " + std::to_string(keys.size()) +
                                         " notes have more than " + std::to_string(max_bytes) +
                                         " bytes, which is the limit: ask for fewer at a time");
    }
    values.push_back(it == notes_.end() ? std::nullopt : std::optional(it->second));
  }
  return values;
}

Status Coordinator::DeleteNote(std::string_view key) {
  MutexLock lock(mutex_);
  if (closed_) return close_status_;
  const auto it = notes_.find(key);
  if (it == notes_.end()) return {Code::kNotFound, "no " + Quoted("note", key)};
  notes_.erase(it);
  return Status::Ok();
}

void Coordinator::WaitVersion(std::string_view table, std::uint64_t current, std::uint64_t at_least,
                              Owner owner, TimePoint deadline, Done done) {
  MutexLock lock(mutex_);
  if (closed_) {
    const Status status = close_status_;
    lock.unlock();
    return done(status);
  }
  // A push may have been reported since `current` was read.
  if (auto it = versions_.find(table); it != versions_.end()) {
    current = std::max(current, it->second);
  }
  if (current >= at_least) {
    lock.unlock();
    return done(Status::Ok());
  }
  version_waits_[std::string(table)].emplace(
      at_least,
      VersionWait{{std::move(owner), std::chrono::steady_clock::now(), deadline}, std::move(done)});
}

void Coordinator::RaiseVersion(std::string_view table, std::uint64_t version) {
  VersionWaits reached;
  {
    MutexLock lock(mutex_);
    auto known = versions_.find(table);
    if (known == versions_.end()) known = versions_.emplace(std::string(table), 0).first;
    known->second = std::max(known->second, version);
    auto it = version_waits_.find(table);
    if (it == version_waits_.end()) return;
    VersionWaits& waits = it->second;
    while (!waits.empty() && waits.begin()->first <= known->second) {
      reached.insert(waits.extract(waits.begin()));
    }
    if (it->second.empty()) version_waits_.erase(it);
  }
  for (auto& [at_least, wait] : reached) wait.done(Status::Ok());
}

Coordinator::TimePoint Coordinator::ExpireBarriers(TimePoint now, Calls& calls) {
  TimePoint next = TimePoint::max();
  for (auto it = barriers_.begin(); it != barriers_.end();) {
    auto& [name, barrier] = *it;
    const std::string arrived = std::to_string(barrier.arrived.size()) + " of " +
                                std::to_string(barrier.members) + " arrived within ";
    const std::string who = " (" + NamesOf(barrier.arrived) + ")";
    auto late =
        Extract(barrier.arrived, [&](const auto& one) { return one.second.wait.deadline <= now; });
    for (auto& [ticket, member] : late) {
      Status status(Code::kDeadlineExceeded, Quoted("barrier", name) + ": " + arrived +
                                                 Seconds(member.wait.since, member.wait.deadline) +
                                                 who);
      calls.push_back([done = std::move(member.done), status] { done(status); });
    }
    for (const auto& [ticket, member] : barrier.arrived) {
      next = std::min(next, member.wait.deadline);
    }
    it = barrier.arrived.empty() ? barriers_.erase(it) : std::next(it);
  }
  return next;
}

Coordinator::TimePoint Coordinator::ExpireNoteWaits(TimePoint now, Calls& calls) {
  TimePoint next = TimePoint::max();
  for (auto it = note_waits_.begin(); it != note_waits_.end();) {
    auto& [key, waits] = *it;
    for (auto& late : Extract(waits, [&](const NoteWait& w) { return w.wait.deadline <= now; })) {
      Status status(Code::kDeadlineExceeded, Quoted("note", key) + " was not put within " +
                                                 Seconds(late.wait.since, late.wait.deadline));
      calls.push_back([done = std::move(late.done), status] { done(status); });
    }
    for (const auto& wait : waits) next = std::min(next, wait.wait.deadline);
    it = waits.empty() ? note_waits_.erase(it) : std::next(it);
  }
  return next;
}

Coordinator::TimePoint Coordinator::ExpireVersionWaits(TimePoint now, Calls& calls) {
  TimePoint next = TimePoint::max();
  for (auto it = version_waits_.begin(); it != version_waits_.end();) {
    auto& [table, waits] = *it;
    const auto known = versions_.find(table);
    const std::uint64_t version = known == versions_.end() ? 0 : known->second;
    for (auto& [at_least, late] :
         Extract(waits, [&](const auto& one) { return one.second.wait.deadline <= now; })) {
      Status status(Code::kDeadlineExceeded,
                    Quoted("table", table) + ": version " + std::to_string(at_least) +
                        " was not reached within " + Seconds(late.wait.since, late.wait.deadline) +
                        "; it is " + std::to_string(version));
      calls.push_back([done = std::move(late.done), status] { done(status); });
    }
    for (const auto& [at_least, wait] : waits) next = std::min(next, wait.wait.deadline);
    it = waits.empty() ? version_waits_.erase(it) : std::next(it);
  }
  return next;
}

Coordinator::TimePoint Coordinator::Expire(TimePoint now) {
  Calls calls;
  TimePoint next = TimePoint::max();
  {
    MutexLock lock(mutex_);
    next = std::min(
        {ExpireBarriers(now, calls), ExpireNoteWaits(now, calls), ExpireVersionWaits(now, calls)});
  }
  Run(calls);
  return next;
}

void Coordinator::TakeMembers(std::uint64_t owner_id, std::uint64_t tickets_below, Calls& calls) {
  for (auto it = barriers_.begin(); it != barriers_.end();) {
    auto& [name, barrier] = *it;
    const auto end = barrier.arrived.lower_bound({owner_id, tickets_below});
    for (auto gone = barrier.arrived.lower_bound({owner_id, 0}); gone != end;) {
      const Status status = GivenUp(name, gone->second.wait.owner);
      calls.push_back([done = std::move(gone->second.done), status] { done(status); });
      gone = barrier.arrived.erase(gone);
    }
    it = barrier.arrived.empty() ? barriers_.erase(it) : std::next(it);
  }
}

void Coordinator::TakeWaits(std::uint64_t owner_id, const char* why, Calls& calls) {
  const auto take = [&](auto& waits_by_name, auto wait_of) {
    for (auto it = waits_by_name.begin(); it != waits_by_name.end();) {
      for (auto& one :
           Extract(it->second, [&](auto& w) { return wait_of(w).wait.owner.id == owner_id; })) {
        auto& gone = wait_of(one);
        Status status(Code::kPeerLost, "'" + gone.wait.owner.name + "' " + why);
        calls.push_back([done = std::move(gone.done), status] { done(status); });
      }
      it = it->second.empty() ? waits_by_name.erase(it) : std::next(it);
    }
  };
  take(note_waits_, [](auto& wait) -> auto& { return wait; });
  take(version_waits_, [](auto& entry) -> auto& { return entry.second; });
}

void Coordinator::Withdraw(std::uint64_t owner_id, std::uint64_t tickets_below) {
  Calls calls;
  {
    MutexLock lock(mutex_);
    std::uint64_t& bound = given_up_[owner_id];
    if (tickets_below <= bound) return;
    bound = tickets_below;
    TakeMembers(owner_id, tickets_below, calls);
  }
  Run(calls);
}

void Coordinator::Withdraw(std::uint64_t owner_id) {
  Calls calls;
  {
    MutexLock lock(mutex_);
    TakeMembers(owner_id, UINT64_MAX, calls);
    TakeWaits(owner_id, "has given up its wait", calls);
  }
  Run(calls);
}

void Coordinator::ForgetOwner(std::uint64_t owner_id, const std::string& why) {
  Calls calls;
  {
    MutexLock lock(mutex_);
    given_up_.erase(owner_id);
    for (auto it = barriers_.begin(); it != barriers_.end();) {
      auto& [name, barrier] = *it;
      const auto lost = barrier.arrived.lower_bound({owner_id, 0});
      if (lost == barrier.arrived.end() || lost->first.first != owner_id) {
        ++it;
        continue;
      }
      const Status status(Code::kPeerLost, Quoted("barrier", name) + ": member '" +
                                               lost->second.wait.owner.name + "' was lost" +
                                               (why.empty() ? why : ": " + why));
      for (auto& [ticket, member] : barrier.arrived) {
        calls.push_back([done = std::move(member.done), status] { done(status); });
      }
      it = barriers_.erase(it);
    }
    TakeWaits(owner_id, "was lost while waiting", calls);
  }
  Run(calls);
}

void Coordinator::Close(Status status) {
  Calls calls;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    close_status_ = status;
    const auto end = [&](auto& waiting) {
      calls.push_back([done = std::move(waiting.done), status] { done(status); });
    };
    for (auto& [name, barrier] : barriers_) {
      for (auto& [ticket, member] : barrier.arrived) end(member);
    }
    for (auto& [key, waits] : note_waits_) std::ranges::for_each(waits, end);
    for (auto& [table, waits] : version_waits_) {
      for (auto& [at_least, wait] : waits) end(wait);
    }
    barriers_.clear();
    note_waits_.clear();
    version_waits_.clear();
  }
  Run(calls);
}

std::map<std::string, std::string> Coordinator::Notes() const {
  MutexLock lock(mutex_);
  return {notes_.begin(), notes_.end()};
}

}  // namespace sparsefleet
