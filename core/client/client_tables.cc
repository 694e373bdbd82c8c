// Calls that define, describe and set tables, and calls that wait.
#include <algorithm>
#include <string>

#include "client/call.h"
#include "client/client.h"
#include "client/client_core.h"
#include "client/table_lookup.h"
#include "store/coordinator.h"

namespace sparsefleet {
namespace {

std::string Quoted(std::string_view what, std::string_view name) {
  std::string text(what);
  return text.append(" '").append(name.substr(0, 100)).append("': ");
}

// The servers that hold a part of the table, and therefore count its pushes.
std::vector<std::uint32_t> HoldersOf(const ClientCore& core, std::string_view table,
                                     const TableInfo& info) {
  std::vector<std::uint32_t> holders;
  const std::uint32_t n = core.num_servers();
  for (std::uint32_t i = 0; i < n; ++i) {
    if (!info.dense || DenseRangeOf(table, info.size, info.min_block_size, i, n).size() > 0) {
      holders.push_back(i);
    }
  }
  return holders;
}

Status CheckText(std::string_view what, std::string_view text, std::size_t most) {
  if (!text.empty() && text.size() <= most) return Status::Ok();
  return {Code::kInvalidArgument, std::string(what) + " of " + std::to_string(text.size()) +
                                      " bytes, expected 1 to " + std::to_string(most)};
}

}  // namespace

Status Client::Define(const SparseSpec& spec, double timeout_s) {
  if (Status s = spec.Validate(); !s.ok()) return s;
  const CallClock clock(timeout_s);
  const CallSpec call{MessageType::kDefineSparse, TableSubject(spec.name), "defining it on",
                      timeout_s};
  if (auto replies = CallAll(*core_, call, Encode(spec)); !replies.ok()) return replies.status();
  return AskTableInfo(*core_, spec.name, clock.left_s()).status();
}

Status Client::Define(const DenseSpec& spec, double timeout_s) {
  if (Status s = spec.Validate(); !s.ok()) return s;
  const CallClock clock(timeout_s);
  const CallSpec call{MessageType::kDefineDense, TableSubject(spec.name), "defining it on",
                      timeout_s};
  if (auto replies = CallAll(*core_, call, Encode(spec)); !replies.ok()) return replies.status();
  return AskTableInfo(*core_, spec.name, clock.left_s()).status();
}

Result<TableInfo> Client::Info(std::string_view table, double timeout_s) {
  return AskTableInfo(*core_, table, timeout_s);
}

Status Client::WriteDense(std::string_view table, std::span<const float> values, double timeout_s) {
  const CallClock clock(timeout_s);
  auto info = FindTable(*core_, table, true, clock);
  if (!info.ok()) return info.status();
  if (values.size() != info.value().size) {
    return {Code::kShapeMismatch,
            TableSubject(table) + "it has " + std::to_string(info.value().size) +
                " elements, but the write has " + std::to_string(values.size())};
  }
  std::vector<ServerPart> parts;
  for (const std::uint32_t server : HoldersOf(*core_, table, info.value())) {
    const DenseRange range = DenseRangeOf(table, info.value().size, info.value().min_block_size,
                                          server, core_->num_servers());
    parts.emplace_back(server,
                       Encode(WriteDenseRequest{table, values.subspan(range.begin, range.size())}));
  }
  return RunCall(
      *core_, {MessageType::kWriteDense, TableSubject(table), "writing to", clock.left_s()}, parts);
}

Status Client::SetLearningRate(std::string_view table, double learning_rate,
                               std::optional<std::uint64_t> at, double timeout_s) {
  const CallClock clock(timeout_s);
  if (auto info = FindTable(*core_, table, clock); !info.ok()) return info.status();
  TableRequest request{table};
  request.real = learning_rate;
  request.number = at.value_or(0);
  request.flags = at ? kFlagHasCount : 0;
  return CallAll(*core_,
                 {MessageType::kSetLearningRate, TableSubject(table),
                  "setting its learning rate on", clock.left_s()},
                 Encode(request))
      .status();
}

Result<std::uint64_t> Client::Version(std::string_view table, double timeout_s) {
  const CallClock clock(timeout_s);
  auto info = FindTable(*core_, table, clock);
  if (!info.ok()) return info.status();
  std::vector<ServerPart> parts;
  for (const std::uint32_t server : HoldersOf(*core_, table, info.value())) {
    parts.emplace_back(server, Encode(TableRequest{table}));
  }
  const CallSpec spec{MessageType::kVersion, TableSubject(table), "asking for its version at",
                      clock.left_s()};
  if (Status s = RunCall(*core_, spec, parts); !s.ok()) return s;
  std::uint64_t lowest = UINT64_MAX;
  for (const auto& part : parts) {
    auto version = DecodeNumber(part.reply.body);
    if (!version.ok()) return version.status().WithPrefix(spec.subject);
    lowest = std::min(lowest, version.value());
  }
  return lowest;
}

Status Client::WaitVersion(std::string_view table, std::uint64_t at_least, double timeout_s) {
  const CallClock clock(timeout_s);
  auto info = FindTable(*core_, table, clock);
  if (!info.ok()) return info.status();
  TableRequest request{table};
  request.number = at_least;
  std::vector<ServerPart> parts;
  for (const std::uint32_t server : HoldersOf(*core_, table, info.value())) {
    parts.emplace_back(server, Encode(request));
  }
  return RunCall(*core_,
                 {MessageType::kWaitVersion, TableSubject(table),
                  "waiting for version " + std::to_string(at_least) + " at", clock.left_s(), true},
                 parts);
}

Status Client::Barrier(std::string_view name, std::uint32_t members, double timeout_s) {
  if (Status s = CheckText("barrier name", name, kMaxNoteKeyBytes); !s.ok()) return s;
  const CallSpec spec{MessageType::kBarrier, Quoted("barrier", name), "waiting at", timeout_s,
                      true};
  return CallOne(*core_, spec, 0, Encode(BarrierRequest{name, members})).status();
}

Status Client::PutNote(std::string_view key, std::string_view value, double timeout_s) {
  if (Status s = CheckText("note key", key, kMaxNoteKeyBytes); !s.ok()) return s;
  if (value.size() > kMaxNoteValueBytes) {
    return {Code::kTooLarge, Quoted("note", key) + "a value of " + std::to_string(value.size()) +
                                 " bytes, but the limit is " + std::to_string(kMaxNoteValueBytes)};
  }
  const CallSpec spec{MessageType::kPutNote, Quoted("note", key), "putting it on", timeout_s};
  return CallOne(*core_, spec, 0, Encode(NoteRequest{key, value})).status();
}

Result<std::string> Client::GetNote(std::string_view key, bool wait, double timeout_s) {
  if (Status s = CheckText("note key", key, kMaxNoteKeyBytes); !s.ok()) return s;
  const CallSpec spec{MessageType::kGetNote, Quoted("note", key), "getting it from", timeout_s,
                      wait};
  auto reply = CallOne(*core_, spec, 0, Encode(NoteRequest{key, "", wait}));
  if (!reply.ok()) return reply.status();
  auto text = DecodeText(reply.value());
  if (!text.ok()) return text.status().WithPrefix(spec.subject);
  return std::string(text.value());
}

Result<std::vector<std::optional<std::string>>> Client::GetNotes(
    std::span<const std::string_view> keys, double timeout_s) {
  for (const std::string_view key : keys) {
    if (Status s = CheckText("note key", key, kMaxNoteKeyBytes); !s.ok()) return s;
  }
  const std::string subject = std::to_string(keys.size()) + " notes: ";
  const CallSpec spec{MessageType::kGetNotes, subject, "getting them from", timeout_s};
  auto reply = CallOne(*core_, spec, 0, EncodeNoteKeys(keys));
  if (!reply.ok()) return reply.status();
  auto values = DecodeNoteValues(reply.value());
  if (!values.ok()) return values.status().WithPrefix(subject);
  if (values.value().size() != keys.size()) {
    return Status(Code::kProtocol, subject + "the server returned " +
                                       std::to_string(values.value().size()) + " values");
  }
  return values;
}

Status Client::DeleteNote(std::string_view key, double timeout_s) {
  if (Status s = CheckText("note key", key, kMaxNoteKeyBytes); !s.ok()) return s;
  const CallSpec spec{MessageType::kDeleteNote, Quoted("note", key), "deleting it from", timeout_s};
  return CallOne(*core_, spec, 0, Encode(NoteRequest{key, ""})).status();
}

}  // namespace sparsefleet
