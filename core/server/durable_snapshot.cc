// Writes the state of a server as a snapshot while the server keeps running.
#include <chrono>
#include <utility>

#include "server/durable_state.h"

namespace sparsefleet {
namespace {

constexpr std::size_t kRowsBytes = 1 << 20;  // per record

iovec PieceOf(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

Status Append(SnapshotWriter& to, LogRecord type, std::span<const std::byte> head,
              std::span<const std::byte> more = {}) {
  const iovec pieces[] = {PieceOf(head), PieceOf(more)};
  return to.Append(static_cast<std::uint32_t>(type), pieces);
}

// Requests whose effect, and therefore their reply, ends with the process.
bool IsForgotten(MessageType type) {
  return type == MessageType::kOpenCut || type == MessageType::kNextCut ||
         type == MessageType::kCloseCut || type == MessageType::kTakeChanges;
}

Body EncodeWatch(std::uint64_t client, const std::string& table, std::span<const Key> keys) {
  BodyWriter out;
  out.Put(client);
  out.PutString(table);
  out.Put(static_cast<std::uint64_t>(keys.size()));
  out.PutArray(keys);
  return out.Take();
}

}  // namespace

Body EncodeSession(Session& session, bool with_replies) {
  BodyWriter out;
  out.Put(session.id());
  out.Put(session.number());
  out.PutString(session.name());
  for (std::size_t window = 0; window < kNumWindows; ++window) {
    const ReplyMemory& replies = session.replies(static_cast<Window>(window));
    out.Put(replies.acked_below());
    auto all = with_replies ? replies.Export() : std::vector<ReplyMemory::Remembered>();
    std::erase_if(all, [](const auto& one) { return IsForgotten(one.type); });
    out.Put(static_cast<std::uint64_t>(all.size()));
    for (const auto& one : all) {
      out.Put(one.sequence);
      out.Put(static_cast<std::uint8_t>(one.type));
      out.Put(static_cast<std::uint8_t>(one.is_pushed));
      out.Put(one.pushed.applied);
      out.Put(one.pushed.rejected_non_finite);
      out.Put(one.pushed.not_admitted);
      out.Put(static_cast<std::uint8_t>(one.reply.error));
      const auto bytes = one.reply.body.bytes();
      out.Put(static_cast<std::uint64_t>(bytes.size()));
      out.PutArray(bytes);
    }
  }
  const auto marks = session.Marks();
  out.Put(static_cast<std::uint64_t>(marks.size()));
  out.PutArray(std::span<const DataMark>(marks));
  out.Put(session.grace_s());
  return out.Take();
}

Status DurableState::Snapshot(const std::function<Status()>& write_commands) {
  const auto only = HoldSnapshots();
  const auto begun = std::chrono::steady_clock::now();
  std::map<std::string, AnyCut> cuts;
  std::map<std::string, TableSet::Meta> metas;
  std::vector<std::pair<LogRecord, Body>> small;  // being copied
  std::uint64_t lsn = 0;
  {
    const auto alone = journal_.EnterAlone();
    auto opened = parts_.tables.OpenCuts(false, false, std::nullopt, true);
    if (!opened.ok()) return opened.status();
    cuts = std::move(opened).value();
    for (const auto& [name, cut] : cuts) {
      auto meta = parts_.tables.ReadMeta(name);
      if (!meta.ok()) return meta.status();
      metas.emplace(name, meta.value());
    }
    auto begins = journal_.BeginSnapshot();
    if (!begins.ok()) return begins.status();
    lsn = begins.value();
    for (const auto& session : parts_.sessions.All()) {
      small.emplace_back(LogRecord::kSession, EncodeSession(*session, true));
    }
    for (const auto& session : parts_.sessions.All()) {
      for (const auto& [table, keys] : session->Watches()) {
        small.emplace_back(LogRecord::kWatch, EncodeWatch(session->id(), table, keys));
      }
    }
    for (const auto& [key, value] : parts_.coordinator.Notes()) {
      small.emplace_back(LogRecord::kNote, Encode(NoteRequest{key, value}));
    }
    for (const GroupMember& member : parts_.rounds.Export()) {
      small.emplace_back(LogRecord::kMember, EncodeMember(member, nullptr));
    }
    MutexLock lock(rounds_mutex_);
    for (const auto& [group, round] : applied_rounds_) {
      BodyWriter out;
      out.PutString(group);
      out.Put(round);
      small.emplace_back(LogRecord::kGroupRound, out.Take());
    }
  }
  if (write_commands) {
    if (Status s = write_commands(); !s.ok()) return s;
  }
  auto writer = journal_.WriteSnapshot(lsn);
  if (!writer.ok()) return writer.status();
  SnapshotWriter& to = *writer.value();
  if (Status s = WriteTables(to, cuts, metas); !s.ok()) return s;
  for (const auto& [type, body] : small) {
    if (Status s = Append(to, type, body); !s.ok()) return s;
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  return journal_.CommitSnapshot(to, seconds);
}

Status DurableState::WriteTables(SnapshotWriter& to, std::map<std::string, AnyCut>& cuts,
                                 const std::map<std::string, TableSet::Meta>& metas) {
  for (auto& [name, cut] : cuts) {
    const TableSet::Meta& meta = metas.at(name);
    if (auto* sparse = std::get_if<TableCut>(&cut)) {
      if (Status s = WriteSparse(to, name, *sparse, meta); !s.ok()) return s;
      continue;
    }
    auto table = parts_.tables.Dense(name);
    if (!table.ok()) return table.status();
    const DenseCut& dense = std::get<DenseCut>(cut);
    const Body spec = Encode(table.value()->spec());
    BodyWriter head;
    head.Put(meta.version);
    head.Put(meta.learning_rate);
    head.Put(meta.rate_at);
    head.Put(dense.begin);
    head.Put(static_cast<std::uint64_t>(dense.values.size()));
    head.Put(static_cast<std::uint64_t>(dense.state.size()));
    head.Put(static_cast<std::uint64_t>(spec.size()));
    head.PutArray(std::span<const std::byte>(spec));
    head.PutArray(std::span<const float>(dense.values));
    head.PutArray(std::span<const float>(dense.state));
    if (Status s = Append(to, LogRecord::kDenseTable, head.bytes()); !s.ok()) return s;
  }
  return Status::Ok();
}

Status DurableState::WriteSparse(SnapshotWriter& to, const std::string& name, TableCut& cut,
                                 const TableSet::Meta& meta) {
  auto table = parts_.tables.Sparse(name);
  if (!table.ok()) return table.status();
  const SparseTable::Extra extra = cut.extra();
  const Body spec = Encode(table.value()->spec());
  BodyWriter head;
  head.Put(meta.version);
  head.Put(meta.learning_rate);
  head.Put(meta.rate_at);
  head.Put(extra.highest_step);
  head.Put(extra.lowest_step);
  head.Put(static_cast<std::uint8_t>(extra.keeps_removed));
  head.Put(extra.removed_now);
  head.Put(static_cast<std::uint64_t>(table.value()->record_bytes()));
  head.Put(static_cast<std::uint64_t>(spec.size()));
  head.PutArray(std::span<const std::byte>(spec));
  if (Status s = Append(to, LogRecord::kSparseTable, head.bytes()); !s.ok()) return s;
  std::vector<std::pair<Body, bool>> words;
  cut.ForEachWords(
      [&](std::span<const Key> keys, std::span<const std::uint32_t> counts, bool are_candidates) {
        BodyWriter out;
        out.PutString(name);
        out.Put(static_cast<std::uint8_t>(are_candidates));
        out.Put(static_cast<std::uint64_t>(keys.size()));
        out.PutArray(keys);
        out.PutArray(counts);
        words.emplace_back(out.Take(), are_candidates);
      });
  const std::size_t rows = std::max<std::size_t>(1, kRowsBytes / table.value()->record_bytes());
  std::vector<std::byte> records;
  while (cut.NextRecords(rows, records)) {
    BodyWriter out;
    out.PutString(name);
    out.Put(static_cast<std::uint64_t>(records.size()));
    out.Pad();
    if (Status s = Append(to, LogRecord::kRows, out.bytes(), records); !s.ok()) return s;
  }
  for (const auto& [body, are_candidates] : words) {
    if (Status s = Append(to, LogRecord::kWords, body); !s.ok()) return s;
  }
  return Status::Ok();
}

}  // namespace sparsefleet
