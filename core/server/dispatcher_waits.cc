// Requests that wait for others: versions, barriers, notes, commands to the program around.
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

Dispatcher::Answer Dispatcher::DeleteNote(const Call& call) {
  auto request = DecodeNote(call.body);
  if (!request.ok()) return request.status();
  if (Status s = coordinator_.DeleteNote(request.value().key); !s.ok()) return s;
  return ReplyBody();
}

Dispatcher::Answer Dispatcher::TakeCommand(const Call& call) {
  CommandQueue::Arrival arrival;
  arrival.memory = KeepBody(call);
  auto request = DecodeCommand({arrival.memory.get(), call.body.size()});
  if (!request.ok()) return request.status();
  arrival.name = request.value().name;
  arrival.client = call.session->name();
  arrival.body = request.value().body;
  arrival.deadline = BeginWait(call);
  arrival.finish = Finisher(call);
  const auto deadline = arrival.deadline;
  if (Status s = commands_.Add(std::move(arrival)); !s.ok()) return s;
  hooks_.on_wait(deadline);
  return std::nullopt;
}

}  // namespace sparsefleet
