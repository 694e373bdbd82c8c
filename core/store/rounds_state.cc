// The state of groups that a durable server logs: reported as it changes, exported and restored.
#include <algorithm>
#include <chrono>

#include "store/rounds.h"
#include "sync/mutex.h"

namespace sparsefleet {

GroupMember Rounds::Describe(const Groups::value_type& entry, std::uint32_t rank) {
  const auto& [name, group] = entry;
  const Member& member = group.members.at(rank);
  return {name,
          group.size,
          group.continue_without_lost,
          group.past_clocks,
          group.last_loss.has_value(),
          rank,
          member.owner.id,
          member.owner.name,
          member.owner.session,
          static_cast<std::uint8_t>(member.presence),
          member.was_lost,
          member.clock};
}

void Rounds::Report(const Groups::value_type& entry, std::uint32_t rank) const {
  if (log_ != nullptr) log_->OnMember(Describe(entry, rank));
}

void Rounds::EraseGroup(Groups::iterator entry) {
  if (log_ != nullptr) log_->OnGroupGone(entry->first);
  groups_.erase(entry);
}

std::vector<GroupMember> Rounds::Export() const {
  MutexLock lock(mutex_);
  std::vector<GroupMember> all;
  for (const auto& entry : groups_) {
    for (const auto& [rank, member] : entry.second.members) all.push_back(Describe(entry, rank));
  }
  return all;
}

void Rounds::Restore(const GroupMember& member) {
  MutexLock lock(mutex_);
  Group& group = groups_[member.group];
  group.size = member.size;
  group.continue_without_lost = member.continue_without_lost;
  group.past_clocks = member.past_clocks;
  // Clients that connect after the restart were not present at the loss.
  if (member.has_losses) group.last_loss = std::chrono::steady_clock::now();
  Member& known = group.MemberOf(member.rank);
  known.owner = {member.owner_id, member.owner_name, member.owner_session};
  group.Set(known, static_cast<Member::Presence>(std::min<std::uint8_t>(member.presence, 2)),
            member.clock);
  known.was_lost = member.was_lost;
}

void Rounds::RestoreRound(const std::string& group, std::uint64_t round) {
  MutexLock lock(mutex_);
  const auto it = groups_.find(group);
  if (it != groups_.end()) it->second.last_round = round;
}

void Rounds::RestoreGone(const std::string& group) {
  MutexLock lock(mutex_);
  groups_.erase(group);
}

}  // namespace sparsefleet
