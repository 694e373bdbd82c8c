// Requests of workers that step together: rounds and clocks.
#include <memory>
#include <utility>

#include "server/dispatcher.h"
#include "server/durable_state.h"
#include "store/table_views.h"

namespace sparsefleet {
Dispatcher::Answer Dispatcher::PushRound(const Call& call) {
  std::unique_ptr<std::byte[]> memory = KeepBody(call);
  auto request = DecodePushRound({memory.get(), call.body.size()});
  if (!request.ok()) return request.status();
  std::unique_ptr<float[]> widened = WidenValues(request.value().push);
  const PushRoundRequest& round = request.value();
  auto sections = CheckedSections(round.push);
  if (!sections.ok()) return sections.status();
  auto begun = BeginPushAnswer(round.push);
  if (!begun.ok()) return begun.status();
  if (auto known = AnswerOfMarks(call, round.push, begun.value())) return known;
  Contribution contribution;
  contribution.sections = std::move(sections).value();
  contribution.step = round.push.step;
  contribution.refusal = round.refusal;
  const std::shared_ptr<std::byte[]> keys = std::move(memory);  // holds keys and gradients
  contribution.memory =
      std::make_shared<std::pair<std::shared_ptr<std::byte[]>, decltype(widened)>>(
          keys, std::move(widened));
  const std::span<const DataMark> marks = round.push.marks;  // in `keys`
  if (journal_ != nullptr) {
    const RequestHead head = HeadOf(call);
    const auto bytes = std::as_bytes(std::span(&head, 1));
    contribution.request.assign(bytes.begin(), bytes.end());
    const auto more = std::as_bytes(marks);
    contribution.request.insert(contribution.request.end(), more.begin(), more.end());
  }
  contribution.on_applied = [session = call.session, sequence = call.to.request.sequence, marks,
                             keys](const PushResult& result) {
    session->replies(MessageType::kPushRound).SetPushed(sequence, result);
    session->Remember(marks);
  };
  if (Status s = CheckContribution(tables_, contribution); !s.ok()) return s;
  Rounds::Caller caller = CallerOf(call);
  const auto deadline = caller.deadline;
  rounds_.Deliver(
      round.member, round.round, std::move(contribution), std::move(caller),
      [this, finish = Finisher(call), session = call.session, marks, keys, step = round.push.step,
       answer = std::move(begun).value()](const Result<PushResult>& result) mutable {
        if (!result.ok()) return finish(result.status());
        session->Remember(marks);
        finish(FinishPushAnswer(answer, result.value(), step));
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
  const RequestHead head = HeadOf(call);
  const DurableState::Cause cause(head);
  if (Status s = rounds_.Leave(member.value(), session.owner(), session.began()); !s.ok()) return s;
  return ReplyBody();
}

}  // namespace sparsefleet
