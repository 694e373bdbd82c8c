// Requests by which workers take steps together: rounds and clocks.
#include <memory>
#include <utility>

#include "server/dispatcher.h"
#include "store/table_views.h"

namespace sparsefleet {
Dispatcher::Answer Dispatcher::PushRound(const Call& call) {
  std::unique_ptr<std::byte[]> memory = KeepBody(call);
  auto request = DecodePushRound({memory.get(), call.body.size()});
  if (!request.ok()) return request.status();
  const PushRoundRequest& round = request.value();
  auto sections = CheckedSections(round.push);
  if (!sections.ok()) return sections.status();
  auto wanted = WantedValues(round.push);
  if (!wanted.ok()) return wanted.status();
  Contribution contribution;
  contribution.sections = std::move(sections).value();
  contribution.step = round.push.step;
  contribution.refusal = round.refusal;
  contribution.memory = std::shared_ptr<std::byte[]>(std::move(memory));
  if (Status s = CheckContribution(tables_, contribution); !s.ok()) return s;
  Rounds::Caller caller = CallerOf(call);
  const auto deadline = caller.deadline;
  rounds_.Deliver(round.member, round.round, std::move(contribution), std::move(caller),
                  [finish = Finisher(call),
                   wanted = std::move(wanted).value()](const Result<PushResult>& result) {
                    if (!result.ok()) return finish(result.status());
                    finish(ReplyBody(Encode(result.value())).Append(wanted));
                  });
  hooks_.on_wait(deadline);
  return std::nullopt;
}

Dispatcher::Answer Dispatcher::AdvanceClock(const Call& call) {
  auto request = DecodeAdvanceClock(call.body);
  if (!request.ok()) return request.status();
  Rounds::Caller caller = CallerOf(call);
  const auto deadline = caller.deadline;
  rounds_.AdvanceClock(
      request.value().member, request.value().clock, request.value().bound, std::move(caller),
      [finish = Finisher(call)](const Result<std::uint64_t>& sum) {
        finish(sum.ok() ? Result(ReplyBody(EncodeNumber(sum.value()))) : sum.status());
      });
  if (request.value().bound) hooks_.on_wait(deadline);
  return std::nullopt;
}

Dispatcher::Answer Dispatcher::LeaveGroup(const Call& call) {
  auto member = DecodeMember(call.body);
  if (!member.ok()) return member.status();
  const Session& session = *call.session;
  if (Status s = rounds_.Leave(member.value(), session.owner(), session.began()); !s.ok()) return s;
  return ReplyBody();
}

}  // namespace sparsefleet
