// Restores the state of a server from a snapshot and the log after it.
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>

#include "server/durable_state.h"
#include "store/table_views.h"
#include "table/pinned_seconds.h"

namespace sparsefleet {
namespace {

constexpr std::size_t kMaxName = 1 << 20;

Status Malformed(LogRecord type) {
  return {Code::kCorrupt, "a record of type " + std::to_string(static_cast<std::uint32_t>(type)) +
                              " is malformed or has another version"};
}

Status Checked(const BodyReader& in, LogRecord type) {
  return in.Finish("").ok() ? Status::Ok() : Malformed(type);
}

// The header at the start of a record.
std::optional<RequestHead> HeadOf(std::span<const std::byte> payload) {
  RequestHead head;
  if (payload.size() < sizeof(head)) return std::nullopt;
  std::memcpy(&head, payload.data(), sizeof(head));
  return head;
}

MessageType TypeOf(const RequestHead& head) { return static_cast<MessageType>(head.type); }

// Keeps the error of a replayed request, whose client is not there.
class ReplayedReply : public ReplySink {
 public:
  void Send(const FrameHeader&, Reply reply) override {
    if (reply.error) error = DecodeError(reply.body.bytes());
  }
  void Abandon() override {}

  Status error;
};

}  // namespace

Status DurableState::Recover(std::uint64_t incarnation) {
  Team team;
  RowLoader loader;
  const auto visit = [&](bool is_snapshot, const Record& record) {
    loader_ = is_snapshot ? &loader : nullptr;
    return Visit(record);
  };
  const auto after_snapshot = [&] { return loader.Load(team); };
  parts_.tables.SetTeam(&team);
  const Status recovered = journal_.Recover(incarnation, visit, after_snapshot);
  parts_.tables.SetTeam(nullptr);
  loader_ = nullptr;
  if (!recovered.ok()) return recovered;
  // The next recovery replays them as well, unless a snapshot is written before.
  for (const std::string& name : parts_.tables.Names()) {
    if (auto table = parts_.tables.Sparse(name); table.ok()) {
      const SparseStats stats = table.value()->Stats();
      journal_.CountRows(stats.rows_pushed + stats.rows_pulled);
    }
  }
  // Clients have the full peer timeout from now on to come back, however long the recovery took.
  for (const auto& session : parts_.sessions.All()) {
    session->Touch(std::chrono::steady_clock::now());
  }
  parts_.rounds.SetLog(this);
  parts_.coordinator.SetLog(this);
  parts_.tables.SetBirthLog(&journal_);
  parts_.dispatcher.SetJournal(&journal_);
  return Status::Ok();
}

Status DurableState::Visit(const Record& record) {
  const auto payload = record.payload;
  const auto type = static_cast<LogRecord>(record.type);
  switch (type) {
    case LogRecord::kSession:
      return RestoreSession(payload);
    case LogRecord::kSessionEnd: {
      auto id = DecodeNumber(payload);
      if (!id.ok()) return Malformed(type);
      parts_.sessions.Remove(id.value());
      return Status::Ok();
    }
    case LogRecord::kRequest: {
      const auto head = HeadOf(payload);
      if (!head) return Malformed(type);
      return Replay(*head, payload.subspan(sizeof(RequestHead)));
    }
    case LogRecord::kPush:
      return ReplayPush(payload);
    case LogRecord::kRound:
      return ReplayRound(payload);
    case LogRecord::kBirths:
      return ReplayBirths(payload);
    case LogRecord::kErased:
      return ReplayErased(payload);
    case LogRecord::kShrunk:
      return ReplayShrunk(payload);
    case LogRecord::kAnswered: {
      BodyReader in(payload);
      for (const RequestHead& head :
           in.GetArray<RequestHead>(payload.size() / sizeof(RequestHead))) {
        MarkAnswered(head, {});
      }
      return Checked(in, type);
    }
    case LogRecord::kMember:
      return ReplayMember(payload);
    case LogRecord::kGroupGone: {
      auto group = DecodeText(payload);
      if (!group.ok()) return Malformed(type);
      parts_.rounds.RestoreGone(std::string(group.value()));
      applied_rounds_.erase(std::string(group.value()));
      return Status::Ok();
    }
    case LogRecord::kRemovals: {
      auto name = DecodeText(payload);
      if (!name.ok()) return Malformed(type);
      auto table = parts_.tables.Sparse(name.value());
      if (table.ok()) table.value()->KeepRemoved();
      return table.status();
    }
    case LogRecord::kCommand:
      return ReplayCommand(payload, false);
    case LogRecord::kCommandState:
      return ReplayCommand(payload, true);
    case LogRecord::kSparseTable:
      return RestoreSparse(payload);
    case LogRecord::kRows:
      return RestoreRows(payload);
    case LogRecord::kWords:
      return RestoreWords(payload);
    case LogRecord::kDenseTable:
      return RestoreDense(payload);
    case LogRecord::kNote: {
      auto note = DecodeNote(payload);
      if (!note.ok()) return Malformed(type);
      return parts_.coordinator.PutNote(note.value().key, note.value().value);
    }
    case LogRecord::kGroupRound: {
      BodyReader in(payload);
      const std::string group(in.GetString(kMaxName));
      const auto round = in.Get<std::uint64_t>();
      parts_.rounds.RestoreRound(group, round);
      applied_rounds_[group] = round;
      return Checked(in, type);
    }
    case LogRecord::kWatch:
      return RestoreWatch(payload);
    case LogRecord::kEndOfSnapshot:
      break;
  }
  return {Code::kCorrupt, "record type " + std::to_string(record.type) +
                              " is unknown: the log was written by a newer version"};
}

// Replays the request, with nobody to reply to.
Status DurableState::Replay(const RequestHead& head, std::span<const std::byte> body) {
  const auto session = parts_.sessions.Find(head.client_id);
  if (session == nullptr) {
    return {Code::kCorrupt, "a request from an unknown session"};
  }
  const PinnedSeconds pinned(head.seconds);
  ReplyTo nobody;
  nobody.request.type = TypeOf(head);
  nobody.request.sequence = head.sequence;
  nobody.request.acked_below = head.acked_below;
  const auto reply = std::make_shared<ReplayedReply>();
  nobody.sink = reply;
  if (Status s = parts_.dispatcher.Handle(session, body, nobody); !s.ok()) return s;
  // It was applied before it was acknowledged, so without memory for it the server must not start.
  // Other requests are logged before they run, and may fail again as they did then.
  const Code code = reply->error.code();
  if (TypeOf(head) == MessageType::kPush && (code == Code::kTooLarge || code == Code::kInternal)) {
    return reply->error;
  }
  return Status::Ok();
}

Status DurableState::ReplayPush(std::span<const std::byte> payload) {
  const auto head = HeadOf(payload);
  if (!head) return Malformed(LogRecord::kPush);
  if (Status s = Replay(*head, payload.subspan(sizeof(RequestHead))); !s.ok()) return s;
  // The rest of the reply is not in the log: it is rebuilt if the client asks for it.
  parts_.sessions.Find(head->client_id)->replies(MessageType::kPush).KeepPushed(head->sequence);
  return Status::Ok();
}

Status DurableState::ReplayRound(std::span<const std::byte> payload) {
  BodyReader in(payload);
  const std::string group(in.GetString(kMaxName));
  const auto round = in.Get<std::uint64_t>();
  const auto seconds = in.Get<std::uint32_t>();
  const auto count = in.Get<std::uint32_t>();
  std::vector<std::string_view> requests;
  for (std::uint32_t i = 0; i < count && !in.bad(); ++i) requests.push_back(in.GetString(kMaxName));
  in.Pad();
  if (in.bad()) return Malformed(LogRecord::kRound);
  auto push = DecodePushRequest(payload.last(in.left()));
  if (!push.ok()) return Malformed(LogRecord::kRound);
  std::vector<PushSection> sections;
  for (const auto& section : push.value().sections) {
    sections.push_back({section.table, section.keys, section.values, section.dense,
                        section.keys_are_unique, false});
  }
  const PinnedSeconds pinned(seconds);
  auto result = ApplyRound(parts_.tables, parts_.coordinator, sections, push.value().step);
  if (!result.ok()) return result.status();
  for (const std::string_view request : requests) {
    const auto bytes = std::as_bytes(std::span(request));
    const auto head = HeadOf(bytes);
    if (!head || (bytes.size() - sizeof(RequestHead)) % sizeof(DataMark) != 0) {
      return Malformed(LogRecord::kRound);
    }
    const auto session = parts_.sessions.Find(head->client_id);
    if (session == nullptr) continue;
    std::vector<DataMark> marks((bytes.size() - sizeof(RequestHead)) / sizeof(DataMark));
    if (!marks.empty()) {
      std::memcpy(marks.data(), bytes.data() + sizeof(RequestHead),
                  marks.size() * sizeof(DataMark));
    }
    session->Remember(marks);
    ReplyMemory& replies = session->replies(TypeOf(*head));
    replies.Acknowledge(head->acked_below);
    replies.Restore({head->sequence, TypeOf(*head), true, result.value(), {}});
  }
  parts_.rounds.RestoreRound(group, round);
  applied_rounds_[group] = round;
  return Status::Ok();
}

Status DurableState::ReplayBirths(std::span<const std::byte> payload) {
  BodyReader in(payload);
  const auto step = in.Get<std::uint64_t>();
  const auto seconds = in.Get<std::uint32_t>();
  const auto name = in.GetString(kMaxName);
  const auto count = in.Get<std::uint64_t>();
  const auto keys = in.GetArray<Key>(count);
  if (Status s = Checked(in, LogRecord::kBirths); !s.ok()) return s;
  auto table = parts_.tables.Sparse(name);
  if (!table.ok()) return table.status();
  const PinnedSeconds pinned(seconds);
  std::vector<float> rows(keys.size() * table.value()->dim());
  return table.value()->Pull(keys, PullMode::kTrain, step, rows);
}

Status DurableState::ReplayErased(std::span<const std::byte> payload) {
  auto request = DecodeErase(payload);
  if (!request.ok()) return Malformed(LogRecord::kErased);
  auto table = parts_.tables.Sparse(request.value().table);
  if (table.ok()) table.value()->Erase(request.value().keys);
  return table.status();
}

Status DurableState::ReplayShrunk(std::span<const std::byte> payload) {
  const auto head = HeadOf(payload);
  if (!head) return Malformed(LogRecord::kShrunk);
  BodyReader in(payload.subspan(sizeof(RequestHead)));
  const auto name = in.GetString(kMaxName);
  const auto evicted = in.Get<std::uint64_t>();
  if (Status s = Checked(in, LogRecord::kShrunk); !s.ok()) return s;
  auto table = parts_.tables.Sparse(name);
  if (!table.ok()) return table.status();
  table.value()->HalveCandidates();
  MarkAnswered(*head, {false, EncodeNumber(evicted)});
  return Status::Ok();
}

Status DurableState::ReplayMember(std::span<const std::byte> payload) {
  BodyReader in(payload);
  GroupMember member;
  member.group = in.GetString(kMaxName);
  member.size = in.Get<std::uint32_t>();
  member.continue_without_lost = in.GetBool();
  member.past_clocks = in.Get<std::uint64_t>();
  member.has_losses = in.GetBool();
  member.rank = in.Get<std::uint32_t>();
  member.owner_id = in.Get<std::uint64_t>();
  member.owner_name = in.GetString(kMaxName);
  member.owner_session = in.Get<std::uint64_t>();
  member.presence = in.Get<std::uint8_t>();
  member.was_lost = in.GetBool();
  member.clock = in.Get<std::uint64_t>();
  in.Pad();
  for (const RequestHead& head : in.GetArray<RequestHead>(in.left() / sizeof(RequestHead))) {
    MarkAnswered(head, {});
  }
  if (Status s = Checked(in, LogRecord::kMember); !s.ok()) return s;
  parts_.rounds.Restore(member);
  return Status::Ok();
}

Status DurableState::ReplayCommand(std::span<const std::byte> payload, bool is_state) {
  const auto text = [](std::span<const std::byte> bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  RecoveredCommand command;
  command.is_state = is_state;
  if (is_state) {
    auto state = DecodeCommand(payload);
    if (!state.ok()) return Malformed(LogRecord::kCommandState);
    command.name = state.value().name;
    command.body = text(state.value().body);
    commands_.push_back(std::move(command));
    return Status::Ok();
  }
  const auto head = HeadOf(payload);
  if (!head) return Malformed(LogRecord::kCommand);
  BodyReader in(payload.subspan(sizeof(RequestHead)));
  command.name = in.GetString(kMaxName);
  command.client = in.GetString(kMaxName);
  command.session = in.Get<std::uint64_t>();
  const auto body_bytes = in.Get<std::uint64_t>();
  const auto reply_bytes = in.Get<std::uint64_t>();
  command.body = text(in.GetArray<std::byte>(body_bytes));
  const auto reply = in.GetArray<std::byte>(reply_bytes);
  command.reply = text(reply);
  if (Status s = Checked(in, LogRecord::kCommand); !s.ok()) return s;
  MarkAnswered(*head, {false, Body(reply.begin(), reply.end())});
  commands_.push_back(std::move(command));
  return Status::Ok();
}

void DurableState::MarkAnswered(const RequestHead& head, Reply reply) {
  const auto session = parts_.sessions.Find(head.client_id);
  if (session == nullptr || head.sequence == 0) return;
  ReplyMemory& replies = session->replies(TypeOf(head));
  replies.Acknowledge(head.acked_below);
  replies.Restore({head.sequence, TypeOf(head), false, {}, std::move(reply)});
}

Status DurableState::RestoreSession(std::span<const std::byte> payload) {
  BodyReader in(payload);
  const auto id = in.Get<std::uint64_t>();
  const auto number = in.Get<std::uint64_t>();
  const std::string name(in.GetString(kMaxName));
  if (in.bad()) return Malformed(LogRecord::kSession);
  const auto session = parts_.sessions.Restore(id, number, name, std::chrono::steady_clock::now());
  for (std::size_t window = 0; window < kNumWindows; ++window) {
    ReplyMemory& replies = session->replies(static_cast<Window>(window));
    replies.Acknowledge(in.Get<std::uint64_t>());
    const auto count = in.Get<std::uint64_t>();
    for (std::uint64_t i = 0; i < count && !in.bad(); ++i) {
      ReplyMemory::Remembered one;
      one.sequence = in.Get<std::uint64_t>();
      one.type = static_cast<MessageType>(in.Get<std::uint8_t>());
      one.is_pushed = in.GetBool();
      one.pushed.applied = in.Get<std::uint64_t>();
      one.pushed.rejected_non_finite = in.Get<std::uint64_t>();
      one.pushed.not_admitted = in.Get<std::uint64_t>();
      one.reply.error = in.GetBool();
      const auto bytes = in.GetArray<std::byte>(in.Get<std::uint64_t>());
      if (!bytes.empty()) one.reply.body = Body(bytes.begin(), bytes.end());
      replies.Restore(one);
    }
  }
  const auto num_marks = in.Get<std::uint64_t>();
  session->Remember(in.GetArray<DataMark>(num_marks));
  session->SetGrace(in.Get<double>());
  return Checked(in, LogRecord::kSession);
}

Status DurableState::RestoreSparse(std::span<const std::byte> payload) {
  BodyReader in(payload);
  TableSet::Meta meta;
  meta.version = in.Get<std::uint64_t>();
  meta.learning_rate = in.Get<double>();
  meta.rate_at = in.Get<std::uint64_t>();
  SparseTable::Extra extra;
  extra.highest_step = in.Get<std::uint32_t>();
  extra.lowest_step = in.Get<std::uint32_t>();
  extra.keeps_removed = in.GetBool();
  extra.removed_now = in.Get<std::uint32_t>();
  const auto record_bytes = in.Get<std::uint64_t>();
  const auto spec_bytes = in.GetArray<std::byte>(in.Get<std::uint64_t>());
  if (Status s = Checked(in, LogRecord::kSparseTable); !s.ok()) return s;
  auto spec = DecodeSparseSpec(spec_bytes);
  if (!spec.ok()) return Malformed(LogRecord::kSparseTable);
  if (Status s = parts_.tables.Define(spec.value()); !s.ok()) return s;
  auto table = parts_.tables.Sparse(spec.value().name);
  if (!table.ok()) return table.status();
  if (table.value()->record_bytes() != record_bytes) {
    return {Code::kCorrupt, "table '" + spec.value().name + "': rows of " +
                                std::to_string(record_bytes) + " bytes, expected " +
                                std::to_string(table.value()->record_bytes())};
  }
  table.value()->Restore(extra);
  return parts_.tables.WriteMeta(spec.value().name, meta);
}

Status DurableState::RestoreRows(std::span<const std::byte> payload) {
  BodyReader in(payload);
  const auto name = in.GetString(kMaxName);
  const auto rows = in.GetArray<std::byte>(in.Get<std::uint64_t>());
  if (Status s = Checked(in, LogRecord::kRows); !s.ok()) return s;
  if (loader_ == nullptr) return {Code::kCorrupt, "rows outside of a snapshot"};
  auto table = parts_.tables.Sparse(name);
  if (!table.ok()) return table.status();
  loader_->Add(table.value(), rows);  // errors show after the snapshot
  return Status::Ok();
}

Status DurableState::RestoreWords(std::span<const std::byte> payload) {
  BodyReader in(payload);
  const auto name = in.GetString(kMaxName);
  const bool are_candidates = in.GetBool();
  const auto count = in.Get<std::uint64_t>();
  const auto keys = in.GetArray<Key>(count);
  const auto words = in.GetArray<std::uint32_t>(count);
  if (Status s = Checked(in, LogRecord::kWords); !s.ok()) return s;
  auto table = parts_.tables.Sparse(name);
  return table.ok() ? table.value()->RestoreWords(keys, words, are_candidates) : table.status();
}

Status DurableState::RestoreDense(std::span<const std::byte> payload) {
  BodyReader in(payload);
  TableSet::Meta meta;
  meta.version = in.Get<std::uint64_t>();
  meta.learning_rate = in.Get<double>();
  meta.rate_at = in.Get<std::uint64_t>();
  const auto begin = in.Get<std::uint64_t>();
  const auto num_values = in.Get<std::uint64_t>();
  const auto num_state = in.Get<std::uint64_t>();
  const auto spec_bytes = in.GetArray<std::byte>(in.Get<std::uint64_t>());
  const auto values = in.GetArray<float>(num_values);
  const auto state = in.GetArray<float>(num_state);
  if (Status s = Checked(in, LogRecord::kDenseTable); !s.ok()) return s;
  auto spec = DecodeDenseSpec(spec_bytes);
  if (!spec.ok()) return Malformed(LogRecord::kDenseTable);
  const auto [index, num_servers] = parts_.dispatcher.place();
  if (Status s = parts_.tables.Define(spec.value(), index, num_servers); !s.ok()) return s;
  if (!values.empty()) {
    Status s = parts_.tables.WriteDensePart(spec.value().name, begin, values, state);
    if (!s.ok()) return s;
  }
  return parts_.tables.WriteMeta(spec.value().name, meta);
}

Status DurableState::RestoreWatch(std::span<const std::byte> payload) {
  BodyReader in(payload);
  const auto id = in.Get<std::uint64_t>();
  const auto name = in.GetString(kMaxName);
  const auto keys = in.GetArray<Key>(in.Get<std::uint64_t>());
  if (Status s = Checked(in, LogRecord::kWatch); !s.ok()) return s;
  const auto session = parts_.sessions.Find(id);
  auto table = parts_.tables.Sparse(name);
  if (session == nullptr || !table.ok()) return table.status();
  session->Watch(*table.value())->Restore(keys);
  return Status::Ok();
}

}  // namespace sparsefleet
