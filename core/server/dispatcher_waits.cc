// Requests that wait for others: versions, barriers, notes, and commands to the server's program.
#include <algorithm>
#include <string>
#include <utility>

#include "server/dispatcher.h"

namespace sparsefleet {

Dispatcher::Answer Dispatcher::Version(const Call& call) {
  auto request = DecodeTableRequest(call.body);
  if (!request.ok()) return request.status();
  auto version = tables_.Version(request.value().table);
  if (!version.ok()) return version.status();
  return ReplyBody(EncodeNumber(version.value()));
}

Dispatcher::Answer Dispatcher::WaitVersion(const Call& call) {
  auto request = DecodeTableRequest(call.body);
  if (!request.ok()) return request.status();
  const auto& [table, at_least, real, flags] = request.value();
  auto version = tables_.Version(table);
  if (!version.ok()) return version.status();
  const auto deadline = BeginWait(call);
  coordinator_.WaitVersion(table, version.value(), at_least, call.session->owner(), deadline,
                           [finish = Finisher(call)](const Status& status) {
                             finish(status.ok() ? Result(ReplyBody()) : status);
                           });
  hooks_.on_wait(deadline);
  return std::nullopt;
}

Dispatcher::Answer Dispatcher::Barrier(const Call& call) {
  auto request = DecodeBarrier(call.body);
  if (!request.ok()) return request.status();
  const auto deadline = BeginWait(call);
  coordinator_.ArriveAtBarrier(request.value().name, request.value().members, call.session->owner(),
                               call.to.request.sequence, deadline,
                               [finish = Finisher(call)](const Status& status) {
                                 finish(status.ok() ? Result(ReplyBody()) : status);
                               });
  hooks_.on_wait(deadline);
  return std::nullopt;
}

Dispatcher::Answer Dispatcher::PutNote(const Call& call) {
  auto request = DecodeNote(call.body);
  if (!request.ok()) return request.status();
  Status s = coordinator_.PutNote(request.value().key, request.value().value);
  if (!s.ok()) return s;
  return ReplyBody();
}

Dispatcher::Answer Dispatcher::GetNote(const Call& call) {
  auto request = DecodeNote(call.body);
  if (!request.ok()) return request.status();
  const auto deadline = BeginWait(call);
  coordinator_.GetNote(
      request.value().key, request.value().wait, call.session->owner(), deadline,
      [finish = Finisher(call)](const Result<std::string>& value) {
        finish(value.ok() ? Result(ReplyBody(EncodeText(value.value()))) : value.status());
      });
  if (request.value().wait) hooks_.on_wait(deadline);
  return std::nullopt;
}

Dispatcher::Answer Dispatcher::GetNotes(const Call& call) {
  auto keys = DecodeNoteKeys(call.body);
  if (!keys.ok()) return keys.status();
  // What is encoded beside each value, and its absence.
  const std::uint64_t overhead =
      sizeof(std::uint64_t) + keys.value().size() * (1 + sizeof(std::uint32_t));
  const std::uint64_t limit = options_.max_frame_bytes;
  auto values = coordinator_.GetNotes(keys.value(), limit - std::min(limit, overhead));
  if (!values.ok()) return values.status();
  return ReplyBody(EncodeNoteValues(values.value()));
}

Dispatcher::Answer Dispatcher::DeleteNote(const Call& call) {
  auto request = DecodeNote(call.body);
  if (!request.ok()) return request.status();
  if (Status s = coordinator_.DeleteNote(request.value().key); !s.ok()) return s;
  return ReplyBody();
}

// The memory of the command stays until it is answered.
Dispatcher::Finish Dispatcher::CommandFinisher(const Call& call,
                                               const CommandRequest& command) const {
  const bool is_logged =
      journal_ != nullptr && std::ranges::any_of(options_.logged_commands, [&](const auto& prefix) {
        return command.name.starts_with(prefix);
      });
  if (!is_logged) return Finisher(call);
  return [this, session = call.session, to = call.to, head = HeadOf(call),
          command](const Result<ReplyBody>& result) {
    if (!result.ok()) return SendAnswer(*session, to, result);
    const auto logged = journal_->Enter();
    const auto reply = result.value().bytes();
    BodyWriter out;
    out.PutString(command.name);
    out.PutString(session->name());
    out.Put(session->number());
    out.Put(static_cast<std::uint64_t>(command.body.size()));
    out.Put(static_cast<std::uint64_t>(reply.size()));
    out.PutArray(command.body);
    out.PutArray(reply);
    const Body body = out.Take();
    const iovec piece{const_cast<std::byte*>(body.data()), body.size()};
    const Status s = journal_->Append(LogRecord::kCommand, head, {&piece, 1});
    // Its effect exists: an error reply would cause a retry.
    SendAnswer(*session, to, s.ok() ? result : Status(Code::kAnswerLost, s.message()));
  };
}

Dispatcher::Answer Dispatcher::TakeCommand(const Call& call) {
  CommandQueue::Arrival arrival;
  arrival.memory = KeepBody(call);
  auto request = DecodeCommand({arrival.memory.get(), call.body.size()});
  if (!request.ok()) return request.status();
  arrival.name = request.value().name;
  arrival.client = call.session->name();
  arrival.session = call.session->number();
  arrival.body = request.value().body;
  arrival.deadline = BeginWait(call);
  arrival.finish = CommandFinisher(call, request.value());
  const auto deadline = arrival.deadline;
  if (Status s = commands_.Add(std::move(arrival)); !s.ok()) return s;
  hooks_.on_wait(deadline);
  return std::nullopt;
}

}  // namespace sparsefleet
