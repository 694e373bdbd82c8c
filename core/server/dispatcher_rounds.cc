// Requests of workers that step together: rounds and clocks.
#include <cstring>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "server/dispatcher.h"
#include "server/durable_state.h"
#include "store/table_views.h"

namespace sparsefleet {
namespace {

// Copies `from` except for the bytes of `omitted`, which are parts of it in order.
void CopyWithout(std::span<const std::byte> from, std::span<const std::span<const float>> omitted,
                 std::byte* to) {
  std::size_t at = 0;
  const auto copy_to = [&](std::size_t end) {
    if (end > at) std::memcpy(to + at, from.data() + at, end - at);
  };
  for (const auto& part : omitted) {
    const auto bytes = std::as_bytes(part);
    const auto begin = static_cast<std::size_t>(bytes.data() - from.data());
    copy_to(begin);
    at = begin + bytes.size();
  }
  copy_to(from.size());
}

}  // namespace

Result<Dispatcher::KeptPush> Dispatcher::KeepPushRound(const Call& call) {
  KeptPush kept;
  FrameReader::TakenBody taken;
  if (call.take_body && call.body.size() > kCopiedBytes) taken = call.take_body();
  const std::size_t size = call.body.size();
  std::vector<std::span<const float>> in_place;
  if (taken.array != nullptr) {
    kept.body = std::move(taken.array);
  } else {
    kept.body = std::make_unique_for_overwrite<std::byte[]>(size);
    if (taken.lease != nullptr) {
      auto borrowed = DecodePushRound(call.body);
      if (!borrowed.ok()) return borrowed.status();
      for (const auto& section : borrowed.value().push.sections) {
        if (section.dense && !section.values.empty()) in_place.push_back(section.values);
      }
      kept.lease = std::move(taken.lease);
    }
    CopyWithout(call.body, in_place, kept.body.get());
  }
  auto decoded = DecodePushRound({kept.body.get(), size});
  if (!decoded.ok()) return decoded.status();
  kept.request = std::move(decoded).value();
  auto next = in_place.begin();
  for (auto& section : kept.request.push.sections) {
    if (in_place.empty() || !section.dense || section.values.empty()) continue;
    // The peer can still write to its body.
    if (next == in_place.end() || next->size() != section.values.size()) {
      return Status(Code::kProtocol, "push round: it changed while it was read");
    }
    section.values = *next++;
  }
  return kept;
}

Dispatcher::Answer Dispatcher::PushRound(const Call& call) {
  auto found = KeepPushRound(call);
  if (!found.ok()) return found.status();
  KeptPush kept = std::move(found).value();
  std::unique_ptr<float[]> widened = WidenValues(kept.request.push);
  const PushRoundRequest& round = kept.request;
  auto sections = CheckedSections(round.push);
  if (!sections.ok()) return sections.status();
  auto begun = BeginPushAnswer(round.push);
  if (!begun.ok()) return begun.status();
  if (auto known = AnswerOfMarks(call, round.push, begun.value())) return known;
  Contribution contribution;
  contribution.sections = std::move(sections).value();
  contribution.step = round.push.step;
  contribution.refusal = round.refusal;
  const std::shared_ptr<std::byte[]> keys = kept.body;  // and gradients that are not in place
  contribution.memory = std::make_shared<
      std::tuple<std::shared_ptr<std::byte[]>, std::shared_ptr<const void>, decltype(widened)>>(
      keys, std::move(kept.lease), std::move(widened));
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
