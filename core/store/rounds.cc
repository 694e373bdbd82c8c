#include "store/rounds.h"

#include <algorithm>
#include <new>
#include <utility>

namespace sparsefleet {
namespace {

std::string GroupText(std::string_view name) { return "group '" + std::string(name) + "'"; }

std::string RoundText(std::string_view name, std::uint64_t round) {
  return GroupText(name) + ", round " + std::to_string(round);
}

Status CheckMember(const RoundMember& member) {
  if (member.group.empty() || member.group.size() > kMaxGroupNameBytes) {
    return {Code::kInvalidArgument, "group name of " + std::to_string(member.group.size()) +
                                        " bytes, wanted 1 to " +
                                        std::to_string(kMaxGroupNameBytes)};
  }
  if (member.size == 0 || member.size > kMaxGroupSize || member.rank >= member.size) {
    return {Code::kInvalidArgument, GroupText(member.group) + ": rank " +
                                        std::to_string(member.rank) + " of " +
                                        std::to_string(member.size) +
                                        " members, wanted a rank below the number of members and "
                                        "1 to " +
                                        std::to_string(kMaxGroupSize) + " members"};
  }
  return Status::Ok();
}

}  // namespace

Status Rounds::CheckCaller(const RoundMember& member, const Caller& caller) const {
  if (closed_) return close_status_;
  // A request that was overtaken by the news that nobody waits for it any more.
  const auto bound = given_up_.find(caller.owner.id);
  if (bound != given_up_.end() && caller.ticket < bound->second) {
    return {Code::kPeerLost,
            GroupText(member.group) + ": '" + caller.owner.name + "' has given this call up"};
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
  // Who was not here at the loss belongs to another job.
  if (it != groups_.end() && it->second.last_loss && *it->second.last_loss < began &&
      IsDeserted(*it)) {
    groups_.erase(it);
    it = groups_.end();
  }
  if (it == groups_.end()) {
    // Those that were left by some and never joined by the others would stay for ever.
    if (groups_.size() >= kMaxGroups) std::erase_if(groups_, IsDeserted);
    if (groups_.size() >= kMaxGroups) {
      return Status(Code::kTooLarge, GroupText(member.group) + ": there are " +
                                         std::to_string(kMaxGroups) +
                                         " groups, which is the limit: leave those that are over");
    }
    it = groups_.emplace(std::string(member.group), Group{}).first;
    it->second.size = member.size;
    it->second.go_on_without_lost = member.go_on_without_lost;
  }
  const Group& group = it->second;
  if (group.size != member.size) {
    return Status(Code::kInvalidArgument, GroupText(member.group) + ": rank " +
                                              std::to_string(member.rank) + " counts " +
                                              std::to_string(member.size) + " members, " +
                                              DescribeRank(group, group.members.begin()->first) +
                                              " counts " + std::to_string(group.size));
  }
  if (group.go_on_without_lost != member.go_on_without_lost) {
    return Status(Code::kInvalidArgument, GroupText(member.group) + ": rank " +
                                              std::to_string(member.rank) + " and " +
                                              DescribeRank(group, group.members.begin()->first) +
                                              " disagree on go_on_without_lost");
  }
  return it;
}

Result<Rounds::Groups::iterator> Rounds::Join(const RoundMember& member, const Caller& caller) {
  auto found = Find(member, caller.began);
  if (!found.ok()) return found;
  Group& group = found.value()->second;
  Member& known = group.members[member.rank];
  // Another client under a rank that is gone begins afresh.
  const bool is_same = known.owner.id == caller.owner.id;
  if (known.presence == Member::Presence::kLeft && is_same) {
    const bool was_lost = known.was_lost;
    return Status(was_lost ? Code::kPeerLost : Code::kInvalidArgument,
                  GroupText(member.group) + ": " + DescribeRank(group, member.rank) +
                      (was_lost ? " was lost and counts as having left"
                                : " has left, it can take part again when all have left"));
  }
  known.presence = Member::Presence::kHere;
  known.was_lost = false;
  known.owner = caller.owner;
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
                                        " comes too late, it is over; the last one was " +
                                        std::to_string(*group.last_round)};
  }
  if (!group.deliveries.empty() && group.round != round) {
    return {Code::kInvalidArgument,
            RoundText(name, round) + ": " + who + " brings gradients for it, the others (" +
                DescribeArrived(group) + ") for round " + std::to_string(group.round)};
  }
  if (group.deliveries.contains(member.rank)) {
    return {Code::kInvalidArgument,
            RoundText(name, round) + ": " + who + " has brought its gradients already"};
  }
  return Status::Ok();
}

void Rounds::Deliver(const RoundMember& member, std::uint64_t round, Contribution contribution,
                     Caller caller, PushDone done) {
  After after;
  Status refused;
  {
    std::lock_guard lock(mutex_);
    refused = CheckCaller(member, caller);
    if (refused.ok()) {
      auto joined = Join(member, caller);
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
  if (!refused.ok()) return done(refused);
  Run(after);
}

void Rounds::AdvanceClock(const RoundMember& member, std::uint64_t clock,
                          std::optional<std::uint64_t> bound, Caller caller, ClockDone done) {
  After after;
  Status refused;
  {
    std::lock_guard lock(mutex_);
    refused = CheckCaller(member, caller);
    if (refused.ok()) {
      auto joined = Join(member, caller);
      refused = joined.status();
      if (joined.ok()) {
        Group& group = joined.value()->second;
        Member& self = group.members[member.rank];
        if (clock < self.clock) {
          refused = {Code::kInvalidArgument,
                     GroupText(member.group) + ": " + DescribeRank(group, member.rank) +
                         " reports clock " + std::to_string(clock) + ", before it was at " +
                         std::to_string(self.clock)};
        } else {
          self.clock = clock;
          const std::uint64_t at_least = bound && clock > *bound ? clock - *bound : 0;
          group.clock_waits.push_back({{std::move(caller), std::chrono::steady_clock::now()},
                                       member.rank,
                                       at_least,
                                       std::move(done)});
          Settle(joined.value(), after);
        }
      }
    }
  }
  if (!refused.ok()) return done(refused);
  Run(after);
}

Status Rounds::Leave(const RoundMember& member, const Owner& owner, TimePoint began) {
  After after;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return close_status_;
    auto found = Find(member, began);
    if (!found.ok()) return found.status();
    Member& self = found.value()->second.members[member.rank];
    self.owner = owner;
    self.presence = Member::Presence::kLeft;
    Settle(found.value(), after);
  }
  Run(after);
  return Status::Ok();
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
  std::uint64_t sum = 0;
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
  if (group.members.size() == group.size && IsDeserted(*entry)) groups_.erase(entry);
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
  std::unique_ptr<RoundMerge> merge;
  {
    std::lock_guard lock(mutex_);
    if (!idle_merges_.empty()) {
      merge = std::move(idle_merges_.back());
      idle_merges_.pop_back();
    }
  }
  if (merge == nullptr) merge = std::make_unique<RoundMerge>();
  auto merged = merge->Build(contributions);
  Result<PushResult> result =
      merged.ok() ? apply_(merged.value(), step) : Result<PushResult>(merged.status());
  std::lock_guard lock(mutex_);
  idle_merges_.push_back(std::move(merge));
  return result;
}

std::size_t Rounds::num_groups() const {
  std::lock_guard lock(mutex_);
  return groups_.size();
}

}  // namespace sparsefleet
