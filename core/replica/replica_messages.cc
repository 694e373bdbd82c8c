#include "replica/replica_messages.h"

#include <utility>

namespace sparsefleet {
namespace {

void Put(BodyWriter& out, const ReplicaHead& head) {
  out.Put(head.server);
  out.Put(head.epoch);
  out.Put(head.owner);
}

ReplicaHead GetHead(BodyReader& in) {
  ReplicaHead head;
  head.server = in.Get<std::uint32_t>();
  head.epoch = in.Get<std::uint64_t>();
  head.owner = in.Get<std::uint64_t>();
  return head;
}

// The head, then `bytes` from where they are.
GatheredBody WithBytes(BodyWriter& out, std::span<const std::byte> bytes) {
  out.Put(static_cast<std::uint64_t>(bytes.size()));
  out.Pad();
  GatheredBody body;
  body.heads = out.Take();
  body.bytes = body.heads.size() + bytes.size();
  body.pieces.push_back({body.heads.data(), body.heads.size()});
  if (!bytes.empty()) {
    body.pieces.push_back({const_cast<std::byte*>(bytes.data()), bytes.size()});
  }
  return body;
}

}  // namespace

Body Encode(const ReplicaOpen& message) {
  BodyWriter out;
  Put(out, message.head);
  out.Put(static_cast<std::uint8_t>(message.claims));
  return out.Take();
}

Result<ReplicaOpen> DecodeReplicaOpen(std::span<const std::byte> body) {
  BodyReader in(body);
  ReplicaOpen message;
  message.head = GetHead(in);
  message.claims = in.GetBool();
  if (Status s = in.Finish("replica open"); !s.ok()) return s;
  return message;
}

Body Encode(const ReplicaState& message) {
  BodyWriter out;
  out.Put(message.epoch);
  out.Put(message.epoch_before);
  out.Put(message.owner);
  out.Put(message.next_lsn);
  out.Put(message.snapshot);
  out.Put(static_cast<std::uint64_t>(message.segments.size()));
  out.PutArray(std::span<const std::uint64_t>(message.segments));
  return out.Take();
}

Result<ReplicaState> DecodeReplicaState(std::span<const std::byte> body) {
  BodyReader in(body);
  ReplicaState message;
  message.epoch = in.Get<std::uint64_t>();
  message.epoch_before = in.Get<std::uint64_t>();
  message.owner = in.Get<std::uint64_t>();
  message.next_lsn = in.Get<std::uint64_t>();
  message.snapshot = in.Get<std::uint64_t>();
  const auto segments = in.GetArray<std::uint64_t>(in.Get<std::uint64_t>());
  message.segments.assign(segments.begin(), segments.end());
  if (Status s = in.Finish("replica state"); !s.ok()) return s;
  return message;
}

GatheredBody Gather(const ReplicaAppend& message) {
  BodyWriter out;
  Put(out, message.head);
  out.Put(message.first_lsn);
  return WithBytes(out, message.records);
}

Result<ReplicaAppend> DecodeReplicaAppend(std::span<const std::byte> body) {
  BodyReader in(body);
  ReplicaAppend message;
  message.head = GetHead(in);
  message.first_lsn = in.Get<std::uint64_t>();
  message.records = in.GetArray<std::byte>(in.Get<std::uint64_t>());
  if (Status s = in.Finish("replica append"); !s.ok()) return s;
  return message;
}

GatheredBody Gather(const ReplicaSnapshot& message) {
  BodyWriter out;
  Put(out, message.head);
  out.Put(message.lsn);
  out.Put(message.offset);
  out.Put(static_cast<std::uint8_t>(message.is_last));
  return WithBytes(out, message.bytes);
}

Result<ReplicaSnapshot> DecodeReplicaSnapshot(std::span<const std::byte> body) {
  BodyReader in(body);
  ReplicaSnapshot message;
  message.head = GetHead(in);
  message.lsn = in.Get<std::uint64_t>();
  message.offset = in.Get<std::uint64_t>();
  message.is_last = in.GetBool();
  message.bytes = in.GetArray<std::byte>(in.Get<std::uint64_t>());
  if (Status s = in.Finish("replica snapshot"); !s.ok()) return s;
  return message;
}

Body Encode(const ReplicaRead& message) {
  BodyWriter out;
  Put(out, message.head);
  out.Put(static_cast<std::uint8_t>(message.is_snapshot));
  out.Put(message.lsn);
  out.Put(message.offset);
  out.Put(message.max_bytes);
  return out.Take();
}

Result<ReplicaRead> DecodeReplicaRead(std::span<const std::byte> body) {
  BodyReader in(body);
  ReplicaRead message;
  message.head = GetHead(in);
  message.is_snapshot = in.GetBool();
  message.lsn = in.Get<std::uint64_t>();
  message.offset = in.Get<std::uint64_t>();
  message.max_bytes = in.Get<std::uint64_t>();
  if (Status s = in.Finish("replica read"); !s.ok()) return s;
  return message;
}

}  // namespace sparsefleet
