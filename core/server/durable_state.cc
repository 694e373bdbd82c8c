#include "server/durable_state.h"

#include <utility>

#include "store/table_views.h"
#include "table/pinned_seconds.h"

namespace sparsefleet {

Body EncodeMember(const GroupMember& member, const RequestHead* cause) {
  BodyWriter out;
  out.PutString(member.group);
  out.Put(member.size);
  out.Put(static_cast<std::uint8_t>(member.continue_without_lost));
  out.Put(member.past_clocks);
  out.Put(static_cast<std::uint8_t>(member.has_losses));
  out.Put(member.rank);
  out.Put(member.owner_id);
  out.PutString(member.owner_name);
  out.Put(member.owner_session);
  out.Put(member.presence);
  out.Put(static_cast<std::uint8_t>(member.was_lost));
  out.Put(member.clock);
  out.PutArray(std::span<const RequestHead>(cause, cause == nullptr ? 0 : 1));
  return out.Take();
}

// If the log cannot be written, the next request fails and reports it.
void DurableState::OnMember(const GroupMember& member) {
  (void)journal_.Append(LogRecord::kMember, EncodeMember(member, Cause::Take()));
}

void DurableState::OnGroupGone(const std::string& group) {
  {
    MutexLock lock(rounds_mutex_);
    applied_rounds_.erase(group);
  }
  (void)journal_.Append(LogRecord::kGroupGone, EncodeText(group));
}

Status DurableState::OnBarrier(std::span<const std::pair<std::uint64_t, std::uint64_t>> members) {
  BodyWriter out;
  std::vector<RequestHead> heads;
  for (const auto& [owner, ticket] : members) {
    RequestHead head;
    head.client_id = owner;
    head.sequence = ticket;
    head.type = static_cast<std::uint8_t>(MessageType::kBarrier);
    heads.push_back(head);
  }
  out.PutArray(std::span<const RequestHead>(heads));
  return journal_.Append(LogRecord::kAnswered, out.Take());
}

Result<PushResult> DurableState::Apply(const std::string& group, std::uint64_t round,
                                       std::span<const Contribution* const> contributions,
                                       std::span<const PushSection> merged, std::uint64_t step) {
  const std::uint32_t seconds = PinnedSeconds::Now();
  const PinnedSeconds pinned(seconds);
  BodyWriter head;
  head.PutString(group);
  head.Put(round);
  head.Put(seconds);
  head.Put(static_cast<std::uint32_t>(contributions.size()));
  for (const Contribution* one : contributions) {
    head.PutString({reinterpret_cast<const char*>(one->request.data()), one->request.size()});
  }
  head.Pad();
  PushRequest push;
  push.step = step;
  for (const PushSection& section : merged) {
    PushRequest::Section logged;
    logged.table = section.table;
    logged.dense = section.dense;
    logged.keys_are_unique = section.keys_are_unique;
    logged.keys = section.keys;
    logged.values = section.gradients;
    logged.count = section.dense ? section.gradients.size() : section.keys.size();
    logged.dim = 1;
    journal_.CountRows(section.keys.size());
    if (!section.dense) {
      auto table = parts_.tables.Sparse(section.table);
      if (!table.ok()) return table.status();
      logged.dim = table.value()->dim();
    }
    push.sections.push_back(std::move(logged));
  }
  const GatheredBody body = Gather(push);
  std::vector<iovec> pieces{{const_cast<std::byte*>(head.bytes().data()), head.bytes().size()}};
  pieces.insert(pieces.end(), body.pieces.begin(), body.pieces.end());
  const auto logged = journal_.Enter();
  auto result = ApplyRound(parts_.tables, parts_.coordinator, merged, step,
                           [&] { return journal_.Append(LogRecord::kRound, pieces); });
  if (!result.ok()) return result;
  for (const Contribution* one : contributions) {
    if (one->on_applied) one->on_applied(result.value());
  }
  MutexLock lock(rounds_mutex_);
  applied_rounds_[group] = round;
  return result;
}

Status DurableState::AppendCommandState(const std::string& name, std::span<const std::byte> state) {
  return journal_.Append(LogRecord::kCommandState, Encode(CommandRequest{name, state}));
}

Status LogRemovals(Journal& journal, SparseTable& table) {
  const auto logged = journal.Enter();
  Status s = journal.Append(LogRecord::kRemovals, EncodeText(table.spec().name));
  if (s.ok()) table.KeepRemoved();
  return s;
}

Status DurableState::OnClearingCut(const std::vector<std::string>& tables) {
  for (const std::string& name : tables) {
    auto table = parts_.tables.Sparse(name);
    if (!table.ok()) continue;
    if (Status s = LogRemovals(journal_, *table.value()); !s.ok()) return s;
  }
  return Status::Ok();
}

}  // namespace sparsefleet
