// Push, alone or as part of a round; clocks and leaving.
#include <algorithm>
#include <string>
#include <vector>

#include "client/call.h"
#include "client/client.h"
#include "client/client_core.h"
#include "client/push_call.h"
#include "client/table_lookup.h"

namespace sparsefleet {
namespace {

std::string GroupSubject(const RoundMember& member) {
  return "group '" + std::string(member.group.substr(0, 100)) + "', rank " +
         std::to_string(member.rank) + ": ";
}

Status CheckGroupName(const RoundMember& member) {
  if (!member.group.empty() && member.group.size() <= kMaxGroupNameBytes) return Status::Ok();
  return {Code::kInvalidArgument, "group name of " + std::to_string(member.group.size()) +
                                      " bytes, expected 1 to " +
                                      std::to_string(kMaxGroupNameBytes)};
}

bool WantsRows(std::span<const PushSection> sections) {
  return std::ranges::any_of(sections, [](const auto& section) { return section.wants_rows(); });
}

bool Fit(const ClientCore& core, std::span<const ServerPart> parts) {
  return std::ranges::all_of(parts, [&](const ServerPart& part) {
    const std::uint64_t limit = core.links[part.server]->frame_limit().bytes;
    return part.request.bytes <= limit && part.reply_bytes <= limit;
  });
}

// Whether a push and the rows requested with it are too large for one frame, or one push.
template <typename Push>
Result<PushResult> PushThenPull(Client& client, std::span<const PushSection> sections,
                                std::uint64_t step, const CallClock& clock, Push push) {
  std::vector<PushSection> pushed;
  std::vector<PullSection> wanted;
  for (const auto& section : sections) {
    if (section.wants_rows()) {
      wanted.push_back({section.table, section.keys, section.out});
    } else {
      pushed.push_back(section);
    }
  }
  auto result = push(pushed);
  if (!result.ok()) return result;
  if (Status s = client.Pull(wanted, PullMode::kTrain, step, clock.left_s()); !s.ok()) return s;
  return result;
}

// Reads what the answers of a push were to bring, if one of them was lost.
Status FetchIfLost(Client& client, std::span<const ServerPart> parts,
                   std::span<const PushSection> sections, std::uint64_t step,
                   const CallClock& clock) {
  if (std::ranges::none_of(parts, &ServerPart::is_answer_lost)) return Status::Ok();
  std::vector<PullSection> wanted;
  for (const PushSection& section : sections) {
    if (section.out.empty()) continue;
    wanted.push_back({section.table, section.wants_rows() ? section.keys : std::span<const Key>(),
                      section.out, section.dense});
  }
  if (wanted.empty()) return Status::Ok();
  return client.Pull(wanted, PullMode::kTrain, step, clock.left_s());
}

}  // namespace

Result<PushResult> Client::Push(std::span<const PushSection> sections, std::uint64_t step,
                                double timeout_s) {
  const CallClock clock(timeout_s);
  const auto apart = [&](std::span<const PushSection> pushed) {
    return Push(pushed, step, clock.left_s());
  };
  if (Status s = CheckNumSections("push", sections.size()); !s.ok()) {
    return WantsRows(sections) ? PushThenPull(*this, sections, step, clock, apart) : s;
  }
  PushCall push(*core_, sections, step);
  if (Status s = push.Build(clock); !s.ok()) return s;
  std::vector<ServerPart> parts;
  for (std::uint32_t server = 0; server < core_->num_servers(); ++server) {
    const PushRequest& request = push.requests()[server];
    if (!request.sections.empty() || !request.marks.empty()) {
      parts.push_back(push.PartOf(server, Gather(request)));
    }
  }
  if (WantsRows(sections) && !Fit(*core_, parts)) {
    return PushThenPull(*this, sections, step, clock, apart);
  }
  CallSpec spec{MessageType::kPush, TablesSubject(sections), "push to", clock.left_s()};
  spec.may_lose_answers = true;
  if (Status s = RunCall(*core_, spec, parts); !s.ok()) return s;
  auto sum = push.Finish(parts);
  if (!sum.ok()) return sum.status().WithPrefix(spec.subject);
  if (Status s = FetchIfLost(*this, parts, sections, step, clock); !s.ok()) return s;
  PushResult result = sum.value();
  result.rejected_non_finite -= std::min(result.rejected_non_finite, push.repeated_rejections());
  return result;
}

Result<PushResult> Client::PushRound(const RoundMember& member, std::uint64_t round,
                                     std::span<const PushSection> sections, std::uint64_t step,
                                     double timeout_s) {
  if (Status s = CheckGroupName(member); !s.ok()) return s;
  const CallClock clock(timeout_s);
  const auto apart = [&](std::span<const PushSection> pushed) {
    return PushRound(member, round, pushed, step, clock.left_s());
  };
  if (Status s = CheckNumSections("push", sections.size()); !s.ok()) {
    return WantsRows(sections) ? PushThenPull(*this, sections, step, clock, apart) : s;
  }
  PushCall push(*core_, sections, step);
  const Status built = push.Build(clock);
  const bool is_refused = built.code() == Code::kNonFinite;
  if (!built.ok() && !is_refused) return built;
  // Every server, even without a section: each waits for all members, and none may apply a round
  // that another must reject.
  std::vector<ServerPart> parts;
  for (std::uint32_t server = 0; server < core_->num_servers(); ++server) {
    PushRoundRequest request{member, round, {}, {}};
    if (is_refused) {
      request.refusal = built.message();
    } else {
      request.push = push.requests()[server];
    }
    parts.push_back(push.PartOf(server, Gather(request)));
  }
  if (WantsRows(sections) && !Fit(*core_, parts)) {
    return PushThenPull(*this, sections, step, clock, apart);
  }
  core_->left_groups.SetLeft(member, false);
  CallSpec spec{MessageType::kPushRound, GroupSubject(member),
                "round " + std::to_string(round) + " at", clock.left_s(), true};
  spec.may_lose_answers = true;
  if (Status s = RunCall(*core_, spec, parts); !s.ok()) return s;
  auto sum = push.Finish(parts);
  if (!sum.ok()) return sum.status().WithPrefix(spec.subject);
  if (Status s = FetchIfLost(*this, parts, sections, step, clock); !s.ok()) return s;
  return sum;
}

Status Client::AdoptData(std::span<const std::vector<DataMark>> by_server, double timeout_s) {
  if (by_server.size() != core_->num_servers()) {
    return {Code::kInvalidArgument, "data to adopt: got that of " +
                                        std::to_string(by_server.size()) + " servers, expected " +
                                        std::to_string(core_->num_servers())};
  }
  const CallClock clock(timeout_s);
  std::size_t most = 0;
  for (const auto& marks : by_server) most = std::max(most, marks.size());
  for (std::size_t begin = 0; begin < most; begin += kMaxMarks) {
    std::vector<ServerPart> parts;
    for (std::uint32_t server = 0; server < core_->num_servers(); ++server) {
      const std::span<const DataMark> marks = by_server[server];
      if (begin >= marks.size()) continue;
      PushRequest request;
      request.marks = marks.subspan(begin, std::min(kMaxMarks, marks.size() - begin));
      parts.emplace_back(server, Gather(request));
    }
    const CallSpec spec{MessageType::kPush, "", "adopting applied data at", clock.left_s()};
    if (Status s = RunCall(*core_, spec, parts); !s.ok()) return s;
  }
  return Status::Ok();
}

Result<std::uint64_t> Client::AdvanceClock(const RoundMember& member, std::uint64_t clock,
                                           std::optional<std::uint64_t> bound, double timeout_s) {
  if (Status s = CheckGroupName(member); !s.ok()) return s;
  core_->left_groups.SetLeft(member, false);
  const CallSpec spec{MessageType::kAdvanceClock, GroupSubject(member),
                      "clock " + std::to_string(clock) + " at", timeout_s, bound.has_value()};
  // The first server keeps the clocks. A clock of 0 joins: every server must notice a lost member.
  const std::uint32_t num_told = clock == 0 && !bound ? core_->num_servers() : 1;
  std::vector<ServerPart> parts;
  for (std::uint32_t server = 0; server < num_told; ++server) {
    parts.emplace_back(server, Encode(AdvanceClockRequest{member, clock, bound}));
  }
  if (Status s = RunCall(*core_, spec, parts); !s.ok()) return s;
  auto sum = DecodeNumber(parts.front().reply.body);
  if (!sum.ok()) return sum.status().WithPrefix(spec.subject);
  return sum;
}

Status Client::LeaveGroup(const RoundMember& member, double timeout_s) {
  if (Status s = CheckGroupName(member); !s.ok()) return s;
  if (core_->left_groups.HasLeft(member)) return Status::Ok();
  const CallSpec spec{MessageType::kLeaveGroup, GroupSubject(member), "leaving it on", timeout_s};
  if (auto replies = CallAll(*core_, spec, Encode(member)); !replies.ok()) return replies.status();
  core_->left_groups.SetLeft(member, true);
  return Status::Ok();
}

}  // namespace sparsefleet
