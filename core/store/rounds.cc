#include "store/rounds.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <utility>

#include "sync/mutex.h"

namespace sparsefleet {
namespace {

std::string GroupText(std::string_view name) { return "group '" + std::string(name) + "'"; }

std::string RoundText(std::string_view name, std::uint64_t round) {
  return GroupText(name) + ", round " + std::to_string(round);
}

Status CheckMember(const RoundMember& member) {
  if (member.group.empty() || member.group.size() > kMaxGroupNameBytes) {
    return {Code::kInvalidArgument, "group name of " + std::to_string(member.group.size()) +
                                        " bytes, expected 1 to " +
                                        std::to_string(kMaxGroupNameBytes)};
  }
  if (member.size == 0 || member.size > kMaxGroupSize || member.rank >= member.size) {
    return {Code::kInvalidArgument, GroupText(member.group) + ": rank " +
                                        std::to_string(member.rank) + " of " +
                                        std::to_string(member.size) +
                                        " members, expected a rank below the number of members and "
                                        "1 to " +
                                        std::to_string(kMaxGroupSize) + " members"};
  }
  return Status::Ok();
}

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

Status Rounds::CheckCaller(const RoundMember& member, const Caller& caller) const {
  if (closed_) return close_status_;
  // The request arrived after its caller withdrew it.
  const auto bound = given_up_.find(caller.owner.id);
  if (bound != given_up_.end() && caller.ticket < bound->second) {
    return {Code::kPeerLost,
            GroupText(member.group) + ": '" + caller.owner.name + "' has given up this call"};
  }
  return Status::Ok();
}

bool Rounds::IsDeserted(const Groups::value_type& entry) {
  const Group& group = entry.second;
  return group.deliveries.empty() && group.clock_waits.empty() &&
         std::ranges::none_of(group.members, [](const auto& known) {
           return known.second.presence == Member::Presence::kHere;
         });
}

Result<Rounds::Groups::iterator> Rounds::Find(const RoundMember& member, TimePoint began) {
  if (Status s = CheckMember(member); !s.ok()) return s;
  auto it = groups_.find(member.group);
  // A client that was not there at the loss belongs to another job.
  if (it != groups_.end() && it->second.last_loss && *it->second.last_loss < began &&
      IsDeserted(*it)) {
    EraseGroup(it);
    it = groups_.end();
  }
  if (it == groups_.end()) {
    // Groups that some have left and others never joined would stay forever.
    const bool is_full = groups_.size() >= kMaxGroups;
    for (auto other = groups_.begin(); is_full && other != groups_.end();) {
      const auto here = other++;
      if (IsDeserted(*here)) EraseGroup(here);
    }
    if (groups_.size() >= kMaxGroups) {
      return Status(Code::kTooLarge,
                    GroupText(member.group) + ": there are " + std::to_string(kMaxGroups) +
                        " groups already, which is the limit: leave those that are finished");
    }
    it = groups_.emplace(std::string(member.group), Group{}).first;
    it->second.size = member.size;
    it->second.continue_without_lost = member.continue_without_lost;
  }
  const Group& group = it->second;
  if (group.size != member.size) {
    return Status(Code::kInvalidArgument, GroupText(member.group) + ": rank " +
                                              std::to_string(member.rank) + " expects " +
                                              std::to_string(member.size) + " members, but " +
                                              DescribeRank(group, group.members.begin()->first) +
                                              " expects " + std::to_string(group.size));
  }
  if (group.continue_without_lost != member.continue_without_lost) {
    return Status(Code::kInvalidArgument, GroupText(member.group) + ": rank " +
                                              std::to_string(member.rank) + " and " +
                                              DescribeRank(group, group.members.begin()->first) +
                                              " disagree on continue_without_lost");
  }
  return it;
}

Result<Rounds::Groups::iterator> Rounds::Claim(const RoundMember& member, const Owner& owner,
                                               TimePoint began, After& after) {
  auto found = Find(member, began);
  if (!found.ok()) return found;
  const Group& group = found.value()->second;
  const auto known = group.members.find(member.rank);
  if (known == group.members.end() || known->second.presence != Member::Presence::kHere) {
    return found;
  }
  const Owner holder = known->second.owner;
  if (holder.id == owner.id) return found;
  if (is_here_ && !is_here_(holder.id)) {
    // The rank was taken again after its loss was reported, or the loss is about to be reported.
    Lose(found.value(), holder.id, after);
    return Find(member, began);
  }
  const auto who = [](const Owner& one) {
    return "client '" + one.name + "' (session " + std::to_string(one.session) + ")";
  };
  return Status(Code::kNotOwner,
                GroupText(member.group) + ": rank " + std::to_string(member.rank) + " belongs to " +
                    who(holder) + ", whose session is alive; " + who(owner) +
                    " can neither take part nor leave under it. Give each worker a rank of its "
                    "own, or end the other process: the rank is free once it has left the group, "
                    "closed its store or been silent for the server's peer timeout");
}

Result<Rounds::Groups::iterator> Rounds::Join(const RoundMember& member, const Caller& caller,
                                              After& after) {
  auto found = Claim(member, caller.owner, caller.began, after);
  if (!found.ok()) return found;
  Group& group = found.value()->second;
  Member& known = group.members[member.rank];
  const bool is_same = known.owner.id == caller.owner.id;
  if (known.presence == Member::Presence::kLeft && is_same) {
    const bool was_lost = known.was_lost;
    return Status(was_lost ? Code::kPeerLost : Code::kInvalidArgument,
                  GroupText(member.group) + ": " + DescribeRank(group, member.rank) +
                      (was_lost ? " was lost and counts as having left"
                                : " has left; it can take part again when all have left"));
  }
  if (!is_same) group.past_clocks += std::exchange(known.clock, 0);
  const bool is_changed = !is_same || known.presence != Member::Presence::kHere;
  known.presence = Member::Presence::kHere;
  known.was_lost = false;
  known.owner = caller.owner;
  if (is_changed) Report(*found.value(), member.rank);
  return found;
}

Status Rounds::CheckLost(const Groups::value_type& entry) const {
  const auto& [name, group] = entry;
  for (const auto& [rank, member] : group.members) {
    if (member.presence == Member::Presence::kLost) {
      return {Code::kPeerLost, GroupText(name) + ": " + DescribeRank(group, rank) +
                                   " was lost, or ended without leaving"};
    }
  }
  return Status::Ok();
}

Status Rounds::CheckRound(const Groups::value_type& entry, const RoundMember& member,
                          std::uint64_t round) const {
  const auto& [name, group] = entry;
  const std::string who = DescribeRank(group, member.rank);
  if (Status s = CheckLost(entry); !s.ok()) return s;
  if (group.last_round && round <= *group.last_round) {
    return {Code::kInvalidArgument, RoundText(name, round) + ": " + who +
                                        " comes too late: the round is over; the last one was " +
                                        std::to_string(*group.last_round)};
  }
  if (!group.deliveries.empty() && group.round != round) {
    return {Code::kInvalidArgument,
            RoundText(name, round) + ": " + who + " has gradients for it, but the others (" +
                DescribeArrived(group) + ") for round " + std::to_string(group.round)};
  }
  if (group.deliveries.contains(member.rank)) {
    return {Code::kInvalidArgument,
            RoundText(name, round) + ": " + who + " has already sent its gradients"};
  }
  return Status::Ok();
}

void Rounds::Deliver(const RoundMember& member, std::uint64_t round, Contribution contribution,
                     Caller caller, PushDone done) {
  After after;
  Status refused;
  {
    MutexLock lock(mutex_);
    refused = CheckCaller(member, caller);
    if (refused.ok()) {
      auto joined = Join(member, caller, after);
      refused = joined.ok() ? CheckRound(*joined.value(), member, round) : joined.status();
      if (refused.ok()) {
        Group& group = joined.value()->second;
        group.round = round;
        group.deliveries.emplace(member.rank,
                                 Delivery{{std::move(caller), std::chrono::steady_clock::now()},
                                          std::move(contribution),
                                          std::move(done)});
        Settle(joined.value(), after);
      }
    }
  }
  if (!refused.ok()) done(refused);
  Run(after);
}

void Rounds::AdvanceClock(const RoundMember& member, std::uint64_t clock,
                          std::optional<std::uint64_t> bound, Caller caller, ClockDone done) {
  After after;
  Status refused;
  {
    MutexLock lock(mutex_);
    refused = CheckCaller(member, caller);
    if (refused.ok()) {
      auto joined = Join(member, caller, after);
      refused = joined.status();
      if (joined.ok()) {
        Group& group = joined.value()->second;
        Member& self = group.members[member.rank];
        if (clock > self.clock) {
          self.clock = clock;
          Report(*joined.value(), member.rank);
        }
        const std::uint64_t at_least = bound && clock > *bound ? clock - *bound : 0;
        group.clock_waits.push_back({{std::move(caller), std::chrono::steady_clock::now()},
                                     member.rank,
                                     at_least,
                                     std::move(done)});
        Settle(joined.value(), after);
      }
    }
  }
  if (!refused.ok()) done(refused);
  Run(after);
}

Status Rounds::Leave(const RoundMember& member, const Owner& owner, TimePoint began) {
  After after;
  Status status;
  {
    MutexLock lock(mutex_);
    if (closed_) return close_status_;
    auto found = Claim(member, owner, began, after);
    status = found.status();
    if (found.ok()) {
      // If others leave on behalf of a lost owner, the rank stays with that owner, so that it
      // learns of its loss if it comes back.
      Member& self =
          found.value()->second.members.try_emplace(member.rank, Member{owner}).first->second;
      self.presence = Member::Presence::kLeft;
      Report(*found.value(), member.rank);
      Settle(found.value(), after);
    }
  }
  Run(after);
  return status;
}

bool Rounds::IsComplete(const Group& group) const {
  if (group.deliveries.empty()) return false;
  std::size_t accounted = group.deliveries.size();
  for (const auto& [rank, member] : group.members) {
    if (member.presence == Member::Presence::kLeft && !group.deliveries.contains(rank)) {
      ++accounted;
    }
  }
  return accounted == group.size;
}

std::optional<Status> Rounds::Reached(const Groups::value_type& entry,
                                      std::uint64_t at_least) const {
  const auto& [name, group] = entry;
  if (at_least == 0) return Status::Ok();
  bool all = group.members.size() == group.size;
  for (const auto& [rank, member] : group.members) {
    if (member.presence == Member::Presence::kLeft || member.clock >= at_least) continue;
    if (member.presence == Member::Presence::kLost) return CheckLost(entry);
    all = false;
  }
  if (!all) return std::nullopt;
  return Status::Ok();
}

void Rounds::Settle(Groups::iterator entry, After& after) {
  auto& [name, group] = *entry;
  if (IsComplete(group)) {
    group.last_round = group.round;
    after.complete.push_back({name, group.round, std::exchange(group.deliveries, {})});
  }
  std::uint64_t sum = group.past_clocks;
  for (const auto& [rank, member] : group.members) sum += member.clock;
  for (auto it = group.clock_waits.begin(); it != group.clock_waits.end();) {
    const auto reached = Reached(*entry, it->at_least);
    if (!reached) {
      ++it;
      continue;
    }
    after.calls.push_back([done = std::move(it->done), status = *reached, sum] {
      done(status.ok() ? Result(sum) : status);
    });
    it = group.clock_waits.erase(it);
  }
  if (group.members.size() == group.size && IsDeserted(*entry)) EraseGroup(entry);
}

void Rounds::Run(After& after) {
  for (auto& round : after.complete) ApplyRound(round);
  for (auto& call : after.calls) call();
}

void Rounds::ApplyRound(Complete& round) {
  Result<PushResult> result = PushResult{};
  try {
    result = MergeAndApply(round);
  } catch (const std::bad_alloc&) {
    result = Status(Code::kTooLarge, "out of memory");
  } catch (const std::exception& error) {
    result = Status(Code::kInternal, error.what());
  }
  if (!result.ok()) {
    result = result.status().WithPrefix(RoundText(round.group, round.round) + ": ");
  }
  for (auto& [rank, delivery] : round.deliveries) delivery.done(result);
}

Result<PushResult> Rounds::MergeAndApply(const Complete& round) {
  std::vector<const Contribution*> contributions;
  std::uint64_t step = 0;
  for (const auto& [rank, delivery] : round.deliveries) {
    const Contribution& contribution = delivery.contribution;
    if (!contribution.refusal.empty()) {
      return Status(Code::kNonFinite, "rank " + std::to_string(rank) + " ('" +
                                          delivery.wait.caller.owner.name +
                                          "'): " + contribution.refusal);
    }
    contributions.push_back(&contribution);
    step = std::max(step, contribution.step);
  }
  std::unique_ptr<GradientMerge> merge;
  {
    MutexLock lock(mutex_);
    if (!idle_merges_.empty()) {
      merge = std::move(idle_merges_.back());
      idle_merges_.pop_back();
    }
  }
  if (merge == nullptr) merge = std::make_unique<GradientMerge>();
  auto merged = merge->Build(contributions);
  Result<PushResult> result = PushResult{};
  if (!merged.ok()) {
    result = merged.status();
  } else if (log_ != nullptr) {
    result = log_->Apply(round.group, round.round, contributions, merged.value(), step);
  } else {
    result = apply_(merged.value(), step);
  }
  MutexLock lock(mutex_);
  idle_merges_.push_back(std::move(merge));
  return result;
}

std::size_t Rounds::num_groups() const {
  MutexLock lock(mutex_);
  return groups_.size();
}

// -- Waits that end early -------------------------------------------------------------------------

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
    const Wait& wait = it->wait;
    if (wait.caller.deadline > now) {
      next = std::min(next, wait.caller.deadline);
      ++it;
      continue;
    }
    const Status status(Code::kDeadlineExceeded,
                        "group '" + name + "': " + DescribeRank(group, it->rank) +
                            " waits for all clocks to reach " + std::to_string(it->at_least) +
                            ", which did not happen within " +
                            Seconds(wait.since, wait.caller.deadline) + ": " +
                            DescribeSlow(group, it->at_least));
    after.calls.push_back([done = std::move(it->done), status] { done(status); });
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
      if (!goes(it->wait.caller)) {
        ++it;
        continue;
      }
      after.calls.push_back([done = std::move(it->done), status] { done(status); });
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
    TakeBack(
        [&](const Caller& caller) {
          return caller.owner.id == owner_id && caller.ticket < tickets_below;
        },
        {Code::kPeerLost, "the caller has given up this call"}, after);
  }
  Run(after);
}

void Rounds::WithdrawOne(std::uint64_t owner_id, std::uint64_t ticket) {
  After after;
  {
    MutexLock lock(mutex_);
    TakeBack(
        [&](const Caller& caller) {
          return caller.owner.id == owner_id && caller.ticket == ticket;
        },
        {Code::kPeerLost, "the caller has given up this call"}, after);
  }
  Run(after);
}

void Rounds::Lose(Groups::iterator entry, std::uint64_t owner_id, After& after) {
  Group& group = entry->second;
  std::vector<std::uint32_t> lost_ranks;
  for (auto& [rank, member] : group.members) {
    if (member.owner.id != owner_id || member.presence != Member::Presence::kHere) continue;
    // Gradients it has sent are complete and count, like those of a member that leaves.
    member.presence =
        group.continue_without_lost ? Member::Presence::kLeft : Member::Presence::kLost;
    member.was_lost = true;
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
    if (wait->wait.caller.owner.id != owner_id) {
      ++wait;
      continue;
    }
    const Status lost(Code::kPeerLost,
                      "'" + wait->wait.caller.owner.name + "' was lost while waiting");
    after.calls.push_back([done = std::move(wait->done), lost] { done(lost); });
    wait = group.clock_waits.erase(wait);
  }
  Settle(entry, after);
}

void Rounds::ForgetOwner(std::uint64_t owner_id) {
  After after;
  {
    MutexLock lock(mutex_);
    given_up_.erase(owner_id);
    for (auto it = groups_.begin(); it != groups_.end();) Lose(it++, owner_id, after);
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
  }
  Run(after);
}

}  // namespace sparsefleet
