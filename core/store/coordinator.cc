#include "store/coordinator.h"

#include <algorithm>
#include <cstdio>
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
  std::vector<std::pair<std::string, int>> counted;
  for (const auto& member : members) {
    const std::string& name = member.wait.owner.name;
    auto it = std::find_if(counted.begin(), counted.end(),
                           [&](const auto& entry) { return entry.first == name; });
    if (it == counted.end()) it = counted.insert(counted.end(), {name, 0});
    ++it->second;
  }
  std::string text;
  for (const auto& [name, count] : counted) {
    if (!text.empty()) text += ", ";
    text += name;
    if (count > 1) text += " x" + std::to_string(count);
  }
  return text;
}

template <typename Calls>
void RunAll(Calls& calls) {
  for (auto& call : calls) call();
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
          Quoted("barrier", barrier) + ": '" + owner.name + "' has given up this call"};
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

void Coordinator::ArriveAtBarrier(std::string_view name, std::uint32_t members, Owner owner,
                                  std::uint64_t ticket, TimePoint deadline, Done done) {
  if (members == 0) {
    return done(
        {Code::kInvalidArgument, Quoted("barrier", name) + " has 0 members, expected >= 1"});
  }
  std::vector<Member> complete;
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
    auto same = std::find_if(barrier.arrived.begin(), barrier.arrived.end(), [&](const Member& m) {
      return m.wait.owner.id == owner.id && m.ticket == ticket;
    });
    Member member{
        {std::move(owner), std::chrono::steady_clock::now(), deadline}, ticket, std::move(done)};
    if (same != barrier.arrived.end()) {
      *same = std::move(member);
    } else {
      barrier.arrived.push_back(std::move(member));
    }
    if (barrier.arrived.size() < barrier.members) return;
    complete = std::move(barrier.arrived);
    barriers_.erase(it);
  }
  Status logged;
  if (log_ != nullptr) {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> members_done;
    for (const auto& member : complete) {
      members_done.emplace_back(member.wait.owner.id, member.ticket);
    }
    logged = log_->OnBarrier(members_done);
  }
  for (auto& member : complete) member.done(logged);
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
  version_waits_[std::string(table)].push_back(
      {{std::move(owner), std::chrono::steady_clock::now(), deadline}, at_least, std::move(done)});
}

void Coordinator::RaiseVersion(std::string_view table, std::uint64_t version) {
  std::vector<VersionWait> reached;
  {
    MutexLock lock(mutex_);
    auto known = versions_.find(table);
    if (known == versions_.end()) known = versions_.emplace(std::string(table), 0).first;
    known->second = std::max(known->second, version);
    auto it = version_waits_.find(table);
    if (it == version_waits_.end()) return;
    reached =
        Extract(it->second, [&](const VersionWait& w) { return w.at_least <= known->second; });
    if (it->second.empty()) version_waits_.erase(it);
  }
  for (auto& wait : reached) wait.done(Status::Ok());
}

Coordinator::TimePoint Coordinator::ExpireBarriers(TimePoint now, Calls& calls) {
  TimePoint next = TimePoint::max();
  for (auto it = barriers_.begin(); it != barriers_.end();) {
    auto& [name, barrier] = *it;
    const std::string arrived = std::to_string(barrier.arrived.size()) + " of " +
                                std::to_string(barrier.members) + " arrived within ";
    const std::string who = " (" + NamesOf(barrier.arrived) + ")";
    auto late = Extract(barrier.arrived, [&](const Member& m) { return m.wait.deadline <= now; });
    for (auto& member : late) {
      Status status(Code::kDeadlineExceeded, Quoted("barrier", name) + ": " + arrived +
                                                 Seconds(member.wait.since, member.wait.deadline) +
                                                 who);
      calls.push_back([done = std::move(member.done), status] { done(status); });
    }
    for (const auto& member : barrier.arrived) next = std::min(next, member.wait.deadline);
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
    for (auto& late :
         Extract(waits, [&](const VersionWait& w) { return w.wait.deadline <= now; })) {
      Status status(Code::kDeadlineExceeded,
                    Quoted("table", table) + ": version " + std::to_string(late.at_least) +
                        " was not reached within " + Seconds(late.wait.since, late.wait.deadline) +
                        "; it is " + std::to_string(version));
      calls.push_back([done = std::move(late.done), status] { done(status); });
    }
    for (const auto& wait : waits) next = std::min(next, wait.wait.deadline);
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
  RunAll(calls);
  return next;
}

void Coordinator::TakeMembers(std::uint64_t owner_id, std::uint64_t tickets_below, Calls& calls) {
  for (auto it = barriers_.begin(); it != barriers_.end();) {
    auto& [name, barrier] = *it;
    auto gone = Extract(barrier.arrived, [&](const Member& member) {
      return member.wait.owner.id == owner_id && member.ticket < tickets_below;
    });
    for (auto& member : gone) {
      const Status status = GivenUp(name, member.wait.owner);
      calls.push_back([done = std::move(member.done), status] { done(status); });
    }
    it = barrier.arrived.empty() ? barriers_.erase(it) : std::next(it);
  }
}

void Coordinator::TakeWaits(std::uint64_t owner_id, const char* why, Calls& calls) {
  const auto take = [&](auto& waits_by_name) {
    for (auto it = waits_by_name.begin(); it != waits_by_name.end();) {
      for (auto& gone :
           Extract(it->second, [&](const auto& w) { return w.wait.owner.id == owner_id; })) {
        Status status(Code::kPeerLost, "'" + gone.wait.owner.name + "' " + why);
        calls.push_back([done = std::move(gone.done), status] { done(status); });
      }
      it = it->second.empty() ? waits_by_name.erase(it) : std::next(it);
    }
  };
  take(note_waits_);
  take(version_waits_);
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
  RunAll(calls);
}

void Coordinator::Withdraw(std::uint64_t owner_id) {
  Calls calls;
  {
    MutexLock lock(mutex_);
    TakeMembers(owner_id, UINT64_MAX, calls);
    TakeWaits(owner_id, "has given up its wait", calls);
  }
  RunAll(calls);
}

void Coordinator::ForgetOwner(std::uint64_t owner_id) {
  Calls calls;
  {
    MutexLock lock(mutex_);
    given_up_.erase(owner_id);
    const auto is_owner = [&](const auto& waiting) { return waiting.wait.owner.id == owner_id; };
    for (auto it = barriers_.begin(); it != barriers_.end();) {
      auto& [name, barrier] = *it;
      const auto lost = std::find_if(barrier.arrived.begin(), barrier.arrived.end(), is_owner);
      if (lost == barrier.arrived.end()) {
        ++it;
        continue;
      }
      const Status status(Code::kPeerLost, Quoted("barrier", name) + ": member '" +
                                               lost->wait.owner.name + "' was lost");
      for (auto& member : barrier.arrived) {
        calls.push_back([done = std::move(member.done), status] { done(status); });
      }
      it = barriers_.erase(it);
    }
    TakeWaits(owner_id, "was lost while waiting", calls);
  }
  RunAll(calls);
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
    for (auto& [name, barrier] : barriers_) std::ranges::for_each(barrier.arrived, end);
    for (auto& [key, waits] : note_waits_) std::ranges::for_each(waits, end);
    for (auto& [table, waits] : version_waits_) std::ranges::for_each(waits, end);
    barriers_.clear();
    note_waits_.clear();
    version_waits_.clear();
  }
  RunAll(calls);
}

std::map<std::string, std::string> Coordinator::Notes() const {
  MutexLock lock(mutex_);
  return {notes_.begin(), notes_.end()};
}

}  // namespace sparsefleet
