#include "store/rounds.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <utility>

#include "sync/mutex.h"

namespace sparsefleet {
namespace {

// Floats of the gradients of a round from which its replies are written by several threads, even if
// they are fewer than kSharedTasks: copying that many takes longer than waking a thread.
constexpr std::size_t kSharedFloats = 1 << 17;

std::size_t NumFloats(const Contribution& contribution) {
  std::size_t count = 0;
  for (const PushSection& section : contribution.sections) {
    count += section.dense ? SizeOfParts(section.all_parts()) : section.gradients.size();
  }
  return count;
}

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

}  // namespace

Status Rounds::CheckCaller(const RoundMember& member, const Caller& caller) const {
  if (closed_) return close_status_;
  // The request arrived after its caller withdrew it.
  const auto bound = given_up_.find(caller.owner.id);
  if (bound != given_up_.end() && caller.ticket < bound->second) {
    return {Code::kPeerLost,
            GroupText(member.group) + ": '" + caller.owner.name + "' has abandoned this call"};
  }
  return Status::Ok();
}

bool Rounds::IsDeserted(const Groups::value_type& entry) {
  const Group& group = entry.second;
  return group.deliveries.empty() && group.clock_waits.empty() &&
         group.members.size() == group.num_left + group.num_lost;
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
    Lose(found.value(), holder.id, {}, after);
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
  Member& known = group.MemberOf(member.rank);
  const bool is_same = known.owner.id == caller.owner.id;
  if (known.presence == Member::Presence::kLeft && is_same) {
    const bool was_lost = known.was_lost;
    return Status(was_lost ? Code::kPeerLost : Code::kInvalidArgument,
                  GroupText(member.group) + ": " + DescribeRank(group, member.rank) +
                      (was_lost ? " was lost and counts as having left"
                                : " has left; it can take part again when all have left"));
  }
  const bool is_changed = !is_same || known.presence != Member::Presence::kHere;
  if (!is_same) group.past_clocks += known.clock;
  if (is_changed) group.Set(known, Member::Presence::kHere, is_same ? known.clock : 0);
  known.was_lost = false;
  known.owner = caller.owner;
  if (is_changed) Report(*found.value(), member.rank);
  return found;
}

Status Rounds::CheckLost(const Groups::value_type& entry) const {
  const auto& [name, group] = entry;
  if (group.num_lost == 0) return Status::Ok();
  for (const auto& [rank, member] : group.members) {
    if (member.presence == Member::Presence::kLost) {
      const std::string& why = member.why_lost;
      return {Code::kPeerLost, GroupText(name) + ": " + DescribeRank(group, rank) + " was lost" +
                                   (why.empty() ? ", or ended without leaving" : ": " + why)};
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
        Pend(caller);
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
        Member& self = group.MemberOf(member.rank);
        if (clock > self.clock) {
          group.Set(self, self.presence, clock);
          Report(*joined.value(), member.rank);
        }
        const std::uint64_t at_least = bound && clock > *bound ? clock - *bound : 0;
        Pend(caller);
        group.clock_waits.emplace(at_least,
                                  ClockWait{{std::move(caller), std::chrono::steady_clock::now()},
                                            member.rank,
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
      Group& group = found.value()->second;
      const bool is_new = !group.members.contains(member.rank);
      Member& self = group.MemberOf(member.rank);
      if (is_new) self.owner = owner;
      group.Set(self, Member::Presence::kLeft, self.clock);
      Report(*found.value(), member.rank);
      Settle(found.value(), after);
    }
  }
  Run(after);
  return status;
}

Rounds::Member& Rounds::Group::MemberOf(std::uint32_t rank) {
  const auto [it, is_new] = members.try_emplace(rank);
  if (is_new) clocks.insert(0);
  return it->second;
}

void Rounds::Group::Set(Member& member, Member::Presence presence, std::uint64_t clock) {
  using Presence = Member::Presence;
  if (member.presence != Presence::kLeft) clocks.erase(clocks.find(member.clock));
  if (presence != Presence::kLeft) clocks.insert(clock);
  num_left += (presence == Presence::kLeft ? 1 : 0) - (member.presence == Presence::kLeft ? 1 : 0);
  num_lost += (presence == Presence::kLost ? 1 : 0) - (member.presence == Presence::kLost ? 1 : 0);
  clock_sum += clock - member.clock;
  member.presence = presence;
  member.clock = clock;
}

void Rounds::Pend(const Caller& caller) { pending_.emplace(caller.owner.id, caller.ticket); }

void Rounds::Unpend(const Caller& caller) { pending_.erase({caller.owner.id, caller.ticket}); }

bool Rounds::HasPending(std::uint64_t owner_id, std::uint64_t from, std::uint64_t below) const {
  const auto first = pending_.lower_bound({owner_id, from});
  return first != pending_.end() && first->first == owner_id && first->second < below;
}

bool Rounds::IsComplete(const Group& group) const {
  if (group.deliveries.empty()) return false;
  std::size_t accounted = group.deliveries.size() + group.num_left;
  if (accounted < group.size || group.num_left == 0) return accounted == group.size;
  for (const auto& [rank, delivery] : group.deliveries) {
    // Members that left after sending their gradients count once.
    if (group.members.at(rank).presence == Member::Presence::kLeft) --accounted;
  }
  return accounted == group.size;
}

void Rounds::SettleClocks(Groups::value_type& entry, After& after) {
  Group& group = entry.second;
  const std::uint64_t sum = group.past_clocks + group.clock_sum;
  const auto end = [&](auto wait, const Result<std::uint64_t>& result) REQUIRES(mutex_) {
    Unpend(wait->second.wait.caller);
    after.calls.push_back([done = std::move(wait->second.done), result] { done(result); });
    return group.clock_waits.erase(wait);
  };
  // The lowest clock; members that have left no longer count, and those not heard from are at 0.
  std::uint64_t reached = 0;
  if (group.members.size() == group.size) {
    reached = group.clocks.empty() ? UINT64_MAX : *group.clocks.begin();
  }
  while (!group.clock_waits.empty() && group.clock_waits.begin()->first <= reached) {
    end(group.clock_waits.begin(), sum);
  }
  if (group.num_lost == 0) return;
  std::uint64_t stuck = UINT64_MAX;  // no clock above this will be reached
  for (const auto& [rank, member] : group.members) {
    if (member.presence == Member::Presence::kLost) stuck = std::min(stuck, member.clock);
  }
  const Status lost = CheckLost(entry);
  for (auto it = group.clock_waits.upper_bound(stuck); it != group.clock_waits.end();) {
    it = end(it, lost);
  }
}

void Rounds::Settle(Groups::iterator entry, After& after) {
  auto& [name, group] = *entry;
  if (IsComplete(group)) {
    group.last_round = group.round;
    for (const auto& [rank, delivery] : group.deliveries) Unpend(delivery.wait.caller);
    after.complete.push_back({name, group.round, std::exchange(group.deliveries, {})});
  }
  SettleClocks(*entry, after);
  if (group.members.size() == group.size && IsDeserted(*entry)) EraseGroup(entry);
}

void Rounds::Run(After& after) {
  for (auto& round : after.complete) ApplyRound(round);
  RunAll(after.calls);
}

void Rounds::RunAll(Coordinator::Tasks& calls) const {
  if (share_ && calls.size() >= kSharedTasks) return share_(std::move(calls));
  for (auto& call : calls) call();
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
  std::size_t num_floats = 0;
  for (const auto& [rank, delivery] : round.deliveries) {
    num_floats += NumFloats(delivery.contribution);
  }
  // Each reads the rows of one member and writes its reply.
  Coordinator::Tasks calls;
  calls.reserve(round.deliveries.size());
  const auto shared = std::make_shared<const Result<PushResult>>(std::move(result));
  for (auto& [rank, delivery] : round.deliveries) {
    calls.push_back([done = std::move(delivery.done), shared] { done(*shared); });
  }
  if (share_ && calls.size() > 1 && num_floats >= kSharedFloats) return share_(std::move(calls));
  RunAll(calls);
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
  auto merged = merge->Build(contributions, {}, share_);
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

}  // namespace sparsefleet
