// Waits of groups that end early: deadlines, lost members, calls given up.
#include <algorithm>
#include <cstdio>
#include <utility>

#include "store/rounds.h"
#include "sync/mutex.h"

namespace sparsefleet {
namespace {

constexpr std::size_t kNamedRanks = 8;  // in one message

std::string Seconds(Rounds::TimePoint since, Rounds::TimePoint deadline) {
  char text[32];
  const double seconds = std::chrono::duration<double>(deadline - since).count();
  std::snprintf(text, sizeof(text), "%.3g s", std::max(0.0, seconds));
  return text;
}

// "a, b and 3 more"
class RankList {
 public:
  void Add(const std::string& rank) {
    if (++count_ > kNamedRanks) return;
    text_ += (count_ > 1 ? ", " : "") + rank;
  }
  std::string text() const {
    if (count_ <= kNamedRanks) return text_;
    return text_ + " and " + std::to_string(count_ - kNamedRanks) + " more";
  }

 private:
  std::size_t count_ = 0;
  std::string text_;
};

}  // namespace

std::string Rounds::DescribeRank(const Group& group, std::uint32_t rank) {
  const auto known = group.members.find(rank);
  const std::string text = "rank " + std::to_string(rank);
  if (known == group.members.end() || known->second.owner.name.empty()) return text;
  return text + " ('" + known->second.owner.name + "')";
}

std::string Rounds::DescribeArrived(const Group& group) {
  RankList list;
  for (const auto& [rank, delivery] : group.deliveries) list.Add(DescribeRank(group, rank));
  return list.text();
}

std::string Rounds::DescribeMissing(const Group& group) {
  RankList list;
  for (std::uint32_t rank = 0; rank < group.size; ++rank) {
    const auto known = group.members.find(rank);
    const bool has_left =
        known != group.members.end() && known->second.presence == Member::Presence::kLeft;
    if (!has_left && !group.deliveries.contains(rank)) list.Add(DescribeRank(group, rank));
  }
  return list.text();
}

std::string Rounds::DescribeSlow(const Group& group, std::uint64_t at_least) {
  RankList list;
  for (std::uint32_t rank = 0; rank < group.size; ++rank) {
    const auto known = group.members.find(rank);
    if (known == group.members.end()) {
      list.Add(DescribeRank(group, rank) + " at 0");
    } else if (known->second.presence != Member::Presence::kLeft &&
               known->second.clock < at_least) {
      list.Add(DescribeRank(group, rank) + " at " + std::to_string(known->second.clock));
    }
  }
  return list.text();
}

Rounds::TimePoint Rounds::ExpireGroup(Groups::value_type& entry, TimePoint now, After& after) {
  auto& [name, group] = entry;
  TimePoint next = TimePoint::max();
  std::string text;
  for (const auto& [rank, delivery] : group.deliveries) {
    if (delivery.wait.caller.deadline > now || !text.empty()) continue;
    text = "group '" + name + "', round " + std::to_string(group.round) + ": " +
           std::to_string(group.deliveries.size()) + " of " + std::to_string(group.size) +
           " members sent gradients (" + DescribeArrived(group) + "), " + DescribeMissing(group) +
           " did not within ";
  }
  for (auto it = group.deliveries.begin(); it != group.deliveries.end();) {
    const Wait& wait = it->second.wait;
    if (wait.caller.deadline > now) {
      next = std::min(next, wait.caller.deadline);
      ++it;
      continue;
    }
    const Status status(Code::kDeadlineExceeded, text + Seconds(wait.since, wait.caller.deadline));
    after.calls.push_back([done = std::move(it->second.done), status] { done(status); });
    it = group.deliveries.erase(it);
  }
  for (auto it = group.clock_waits.begin(); it != group.clock_waits.end();) {
    const Wait& wait = it->second.wait;
    if (wait.caller.deadline > now) {
      next = std::min(next, wait.caller.deadline);
      ++it;
      continue;
    }
    const Status status(Code::kDeadlineExceeded,
                        "group '" + name + "': " + DescribeRank(group, it->second.rank) +
                            " waits for all clocks to reach " + std::to_string(it->first) +
                            ", which did not happen within " +
                            Seconds(wait.since, wait.caller.deadline) + ": " +
                            DescribeSlow(group, it->first));
    after.calls.push_back([done = std::move(it->second.done), status] { done(status); });
    it = group.clock_waits.erase(it);
  }
  return next;
}

Rounds::TimePoint Rounds::Expire(TimePoint now) {
  After after;
  TimePoint next = TimePoint::max();
  {
    MutexLock lock(mutex_);
    for (auto& entry : groups_) next = std::min(next, ExpireGroup(entry, now, after));
  }
  Run(after);
  return next;
}

// Ends the waits whose caller matches `goes`.
template <typename Goes>
void Rounds::TakeBack(Goes goes, const Status& status, After& after) {
  for (auto& [name, group] : groups_) {
    for (auto it = group.deliveries.begin(); it != group.deliveries.end();) {
      if (!goes(it->second.wait.caller)) {
        ++it;
        continue;
      }
      after.calls.push_back([done = std::move(it->second.done), status] { done(status); });
      it = group.deliveries.erase(it);
    }
    for (auto it = group.clock_waits.begin(); it != group.clock_waits.end();) {
      if (!goes(it->second.wait.caller)) {
        ++it;
        continue;
      }
      after.calls.push_back([done = std::move(it->second.done), status] { done(status); });
      it = group.clock_waits.erase(it);
    }
  }
}

void Rounds::Withdraw(std::uint64_t owner_id, std::uint64_t tickets_below) {
  After after;
  {
    MutexLock lock(mutex_);
    std::uint64_t& bound = given_up_[owner_id];
    if (tickets_below <= bound) return;
    bound = tickets_below;
    if (!HasPending(owner_id, 0, tickets_below)) return;
    pending_.erase(pending_.lower_bound({owner_id, 0}),
                   pending_.lower_bound({owner_id, tickets_below}));
    TakeBack(
        [&](const Caller& caller) {
          return caller.owner.id == owner_id && caller.ticket < tickets_below;
        },
        {Code::kPeerLost, "the caller has abandoned this call"}, after);
  }
  Run(after);
}

void Rounds::WithdrawOne(std::uint64_t owner_id, std::uint64_t ticket) {
  After after;
  {
    MutexLock lock(mutex_);
    if (pending_.erase({owner_id, ticket}) == 0) return;
    TakeBack(
        [&](const Caller& caller) {
          return caller.owner.id == owner_id && caller.ticket == ticket;
        },
        {Code::kPeerLost, "the caller has abandoned this call"}, after);
  }
  Run(after);
}

void Rounds::Lose(Groups::iterator entry, std::uint64_t owner_id, const std::string& why,
                  After& after) {
  Group& group = entry->second;
  std::vector<std::uint32_t> lost_ranks;
  for (auto& [rank, member] : group.members) {
    if (member.owner.id != owner_id || member.presence != Member::Presence::kHere) continue;
    // Gradients it has sent are complete and count, like those of a member that leaves.
    group.Set(member,
              group.continue_without_lost ? Member::Presence::kLeft : Member::Presence::kLost,
              member.clock);
    member.was_lost = true;
    member.why_lost = why;
    lost_ranks.push_back(rank);
  }
  if (lost_ranks.empty()) return;
  group.last_loss = std::chrono::steady_clock::now();
  for (const std::uint32_t rank : lost_ranks) Report(*entry, rank);
  if (const Status lost = CheckLost(*entry); !lost.ok()) {
    for (auto& [rank, delivery] : group.deliveries) {
      after.calls.push_back([done = std::move(delivery.done), lost] { done(lost); });
    }
    group.deliveries.clear();
  }
  for (auto wait = group.clock_waits.begin(); wait != group.clock_waits.end();) {
    const Caller& caller = wait->second.wait.caller;
    if (caller.owner.id != owner_id) {
      ++wait;
      continue;
    }
    const Status lost(Code::kPeerLost, "'" + caller.owner.name + "' was lost while waiting");
    after.calls.push_back([done = std::move(wait->second.done), lost] { done(lost); });
    wait = group.clock_waits.erase(wait);
  }
  Settle(entry, after);
}

void Rounds::ForgetOwner(std::uint64_t owner_id, const std::string& why) {
  After after;
  {
    MutexLock lock(mutex_);
    given_up_.erase(owner_id);
    for (auto it = groups_.begin(); it != groups_.end();) Lose(it++, owner_id, why, after);
    pending_.erase(pending_.lower_bound({owner_id, 0}),
                   pending_.upper_bound({owner_id, UINT64_MAX}));
    for (const auto& [name, group] : groups_) {
      for (const auto& [rank, delivery] : group.deliveries) {  // its gradients may still count
        if (delivery.wait.caller.owner.id == owner_id) Pend(delivery.wait.caller);
      }
    }
  }
  Run(after);
}

void Rounds::Close(const Status& status) {
  After after;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    close_status_ = status;
    TakeBack([](const Caller&) { return true; }, status, after);
    groups_.clear();
    pending_.clear();
  }
  Run(after);
}

}  // namespace sparsefleet
