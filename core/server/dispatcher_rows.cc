// Requests that move or remove whole rows: shrink, erase, cuts, import.
#include <algorithm>
#include <string>
#include <utility>

#include "server/dispatcher.h"
#include "server/durable_state.h"
#include "sync/mutex.h"
#include "transport/plain_rows.h"

namespace sparsefleet {
namespace {

constexpr std::uint32_t kCutOnlyDirty = 1;
constexpr std::uint32_t kCutClearDirty = 2;
constexpr std::size_t kRowsHeadBytes = 64;  // upper bound on EncodeRows' lengths and padding
// Changed rows per reply: small enough for the reply memory to keep it for a retry.
constexpr std::uint64_t kTakenBytes = 4u << 20;

std::size_t RowBytes(const SparseTable& table) {
  return sizeof(Key) + sizeof(float) * (table.dim() + table.state_dim()) +
         sizeof(std::uint32_t) * table.counter_dim();
}

}  // namespace

Dispatcher::Answer Dispatcher::Shrink(const Call& call) {
  auto request = DecodeTableRequest(call.body);
  if (!request.ok()) return request.status();
  auto table = tables_.Sparse(request.value().table);
  if (!table.ok()) return table.status();
  return RunAsJob(call,
                  [this, table = std::move(table).value(), step = request.value().number,
                   head = HeadOf(call)]() -> Result<ReplyBody> {
                    if (journal_ != nullptr) return ShrinkLogged(*table, step, head);
                    return ReplyBody(EncodeNumber(table->Shrink(step)));
                  });
}

// Nothing else changes the table while rows are removed: a push to one of them has the same order
// in the log as in the table.
Result<ReplyBody> Dispatcher::ShrinkLogged(SparseTable& table, std::uint64_t step,
                                           RequestHead head) {
  std::uint64_t evicted = 0;
  const std::string& name = table.spec().name;
  Status s = table.ShrinkInParts(step, [&](const SparseTable::RemoveSome& remove) {
    const auto alone = journal_->EnterAlone();
    const std::vector<Key> keys = remove();
    evicted += keys.size();
    if (keys.empty()) return Status::Ok();
    return journal_->Append(LogRecord::kErased, Encode(EraseRequest{name, keys}));
  });
  if (!s.ok()) return s;
  const auto alone = journal_->EnterAlone();
  BodyWriter out;
  out.PutString(name);
  out.Put(evicted);
  const Body body = out.Take();
  const iovec piece{const_cast<std::byte*>(body.data()), body.size()};
  s = journal_->Append(LogRecord::kShrunk, head, {&piece, 1});
  if (!s.ok()) return s;
  table.HalveCandidates();
  return ReplyBody(EncodeNumber(evicted));
}

Dispatcher::Answer Dispatcher::Erase(const Call& call) {
  auto request = DecodeErase(call.body);
  if (!request.ok()) return request.status();
  auto table = tables_.Sparse(request.value().table);
  if (!table.ok()) return table.status();
  return ReplyBody(EncodeNumber(table.value()->Erase(request.value().keys)));
}

Dispatcher::Answer Dispatcher::OpenCut(const Call& call) {
  auto request = DecodeTableRequest(call.body);
  if (!request.ok()) return request.status();
  const std::uint32_t flags = request.value().flags;
  if ((flags & ~(kCutOnlyDirty | kCutClearDirty)) != 0) {
    return Status(Code::kProtocol, "open cut: unknown flags " + std::to_string(flags));
  }
  auto table = tables_.Sparse(request.value().table);
  if (!table.ok()) return table.status();
  if (Status s = table.value()->CheckCut((flags & kCutOnlyDirty) != 0); !s.ok()) return s;
  if (journal_ != nullptr && (flags & kCutClearDirty) != 0) {
    if (Status s = LogRemovals(*journal_, *table.value()); !s.ok()) return s;
  }
  auto cut = table.value()->OpenCut((flags & kCutOnlyDirty) != 0, (flags & kCutClearDirty) != 0);
  auto id = call.session->AddCut(std::move(cut), RowBytes(*table.value()));
  if (!id.ok()) return id.status();
  return ReplyBody(EncodeNumber(id.value()));
}

Dispatcher::Answer Dispatcher::NextCut(const Call& call) {
  auto request = DecodeNextCut(call.body);
  if (!request.ok()) return request.status();
  if (request.value().max_rows == 0) {
    return Status(Code::kInvalidArgument, "next of cut: max_rows is 0, expected >= 1");
  }
  auto found = call.session->FindCut(request.value().cut);
  if (!found.ok()) return found.status();
  SessionCut& open = *found.value();
  const std::uint64_t room =
      options_.max_frame_bytes > kRowsHeadBytes ? options_.max_frame_bytes - kRowsHeadBytes : 0;
  const std::uint64_t fitting = std::max<std::uint64_t>(1, room / open.row_bytes);
  RowBatch rows;
  {
    MutexLock lock(open.mutex);
    // A request past the end means that the client also has the rows of the other servers.
    if (open.cut.at_end()) open.cut.Commit();
    open.cut.Next(static_cast<std::size_t>(std::min(request.value().max_rows, fitting)), rows);
  }
  return ReplyBody(EncodeRows("", rows));
}

Dispatcher::Answer Dispatcher::CloseCut(const Call& call) {
  auto request = DecodeNumber(call.body);
  if (!request.ok()) return request.status();
  if (Status s = call.session->CloseCut(request.value()); !s.ok()) return s;
  return ReplyBody();
}

Dispatcher::Answer Dispatcher::Import(const Call& call) {
  auto named = DecodeRows(call.body);
  if (!named.ok()) return named.status();
  auto table = tables_.Sparse(named.value().table);
  if (!table.ok()) return table.status();
  if (Status s = table.value()->Import(named.value().rows); !s.ok()) return s;
  return ReplyBody();
}

Dispatcher::Answer Dispatcher::WatchChanges(const Call& call) {
  auto request = DecodeTableRequest(call.body);
  if (!request.ok()) return request.status();
  auto table = tables_.Sparse(request.value().table);
  if (!table.ok()) return table.status();
  return ReplyBody(EncodeNumber(call.session->Watch(*table.value())->num_taken()));
}

Dispatcher::Answer Dispatcher::TakeChanges(const Call& call) {
  auto request = DecodeTableRequest(call.body);
  if (!request.ok()) return request.status();
  const auto& [name, received, real, flags] = request.value();
  if ((flags & ~(kFlagBeginTaking | kFlagTakeBf16)) != 0) {
    return Status(Code::kProtocol, "take changes: unknown flags " + std::to_string(flags));
  }
  auto table = tables_.Sparse(name);
  if (!table.ok()) return table.status();
  auto changes = call.session->FindWatch(name);
  if (!changes.ok()) return changes.status();
  const std::size_t dim = table.value()->dim();
  const std::size_t row_bytes = sizeof(Key) + sizeof(float) * dim;
  const std::uint64_t room =
      options_.max_frame_bytes > kRowsHeadBytes ? options_.max_frame_bytes - kRowsHeadBytes : 0;
  const std::uint64_t max_rows =
      std::max<std::uint64_t>(1, std::min<std::uint64_t>(room, kTakenBytes) / row_bytes);
  bool begins = (flags & kFlagBeginTaking) != 0;
  const bool bf16 = (flags & kFlagTakeBf16) != 0;
  for (;;) {
    const auto keys = changes.value()->Take(std::exchange(begins, false), received,
                                            static_cast<std::size_t>(max_rows));
    if (bf16) {
      auto rows = table.value()->Read(keys);
      if (!rows.ok()) return rows.status();
      const bool is_over = keys.empty() || !rows.value().keys.empty();
      if (is_over) return ReplyBody(EncodeRows("", rows.value(), true));
      changes.value()->DropLast();  // all of them have been removed since
      continue;
    }
    std::span<std::byte> out;
    ReplyBody body = ReplyBody::Uninitialized(PlainRowsBytes(keys.size(), dim), out);
    auto removed = table.value()->PullKnown(keys, PutPlainRows(keys, dim, out));
    if (!removed.ok()) return removed.status();
    if (removed.value().empty()) return body;
    auto rows = table.value()->Read(keys);
    if (!rows.ok()) return rows.status();
    if (!rows.value().keys.empty()) return ReplyBody(EncodeRows("", rows.value()));
    changes.value()->DropLast();  // all of them have been removed since
  }
}

}  // namespace sparsefleet
