// Requests that move or remove whole rows: shrink, erase, cuts, import, save and load.
#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "server/dispatcher.h"
#include "store/table_views.h"
#include "table/dump.h"

namespace sparsefleet {
namespace {

constexpr std::uint32_t kCutOnlyDirty = 1;
constexpr std::uint32_t kCutClearDirty = 2;
constexpr std::size_t kRowsHeadBytes = 64;  // of EncodeRows: lengths and padding
// Changed rows in one reply: few enough that the memory of replies keeps it for a retry.
constexpr std::uint64_t kTakenBytes = 4u << 20;

std::size_t RowBytes(const SparseTable& table) {
  return sizeof(Key) + sizeof(float) * (table.dim() + table.state_dim()) +
         sizeof(std::uint32_t) * table.counter_dim();
}

// Free of symbolic links, ".." and a slash at the end, so that two can be compared.
Result<std::filesystem::path> Resolve(const std::string& directory) {
  std::error_code error;
  const auto path = std::filesystem::weakly_canonical(directory, error);
  if (error) {
    return Status(Code::kIo, "cannot resolve directory '" + directory + "': " + error.message());
  }
  return path.has_filename() ? path : path.parent_path();
}

bool IsBelow(const std::filesystem::path& path, const std::filesystem::path& root) {
  const auto [root_end, ignored] =
      std::mismatch(root.begin(), root.end(), path.begin(), path.end());
  return root_end == root.end();
}

}  // namespace

Dispatcher::Answer Dispatcher::Shrink(const Call& call) {
  auto request = DecodeTableRequest(call.body);
  if (!request.ok()) return request.status();
  auto table = tables_.Sparse(request.value().table);
  if (!table.ok()) return table.status();
  return RunAsJob(call, [table = std::move(table).value(), step = request.value().number] {
    return Result<ReplyBody>(EncodeNumber(table->Shrink(step)));
  });
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
    return Status(Code::kProtocol, "open cut with unknown flags " + std::to_string(flags));
  }
  auto table = tables_.Sparse(request.value().table);
  if (!table.ok()) return table.status();
  if (Status s = table.value()->CheckCut((flags & kCutOnlyDirty) != 0); !s.ok()) return s;
  auto cut = table.value()->OpenCut((flags & kCutOnlyDirty) != 0, (flags & kCutClearDirty) != 0);
  auto id = call.session->AddCut(std::move(cut), RowBytes(*table.value()));
  if (!id.ok()) return id.status();
  return ReplyBody(EncodeNumber(id.value()));
}

Dispatcher::Answer Dispatcher::NextCut(const Call& call) {
  auto request = DecodeNextCut(call.body);
  if (!request.ok()) return request.status();
  if (request.value().max_rows == 0) {
    return Status(Code::kInvalidArgument, "next of cut: max_rows is 0, wanted >= 1");
  }
  auto found = call.session->FindCut(request.value().cut);
  if (!found.ok()) return found.status();
  SessionCut& open = *found.value();
  const std::uint64_t room =
      options_.max_frame_bytes > kRowsHeadBytes ? options_.max_frame_bytes - kRowsHeadBytes : 0;
  const std::uint64_t fitting = std::max<std::uint64_t>(1, room / open.row_bytes);
  RowBatch rows;
  {
    std::lock_guard lock(open.mutex);
    // Asked on past the end: the client has the rows of the other servers as well.
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
  if ((flags & ~kFlagBeginTaking) != 0) {
    return Status(Code::kProtocol, "take changes with unknown flags " + std::to_string(flags));
  }
  auto table = tables_.Sparse(name);
  if (!table.ok()) return table.status();
  auto changes = call.session->FindWatch(name);
  if (!changes.ok()) return changes.status();
  const std::size_t row_bytes = sizeof(Key) + sizeof(float) * table.value()->dim();
  const std::uint64_t room =
      options_.max_frame_bytes > kRowsHeadBytes ? options_.max_frame_bytes - kRowsHeadBytes : 0;
  const std::uint64_t max_rows =
      std::max<std::uint64_t>(1, std::min<std::uint64_t>(room, kTakenBytes) / row_bytes);
  auto rows = TakeChangedRows(*table.value(), *changes.value(), (flags & kFlagBeginTaking) != 0,
                              received, static_cast<std::size_t>(max_rows));
  if (!rows.ok()) return rows.status();
  return ReplyBody(EncodeRows("", rows.value()));
}

Result<std::string> Dispatcher::CheckedDirectory(std::span<const std::byte> body) const {
  auto text = DecodeText(body);
  if (!text.ok()) return text.status();
  const std::string directory(text.value());
  if (!std::filesystem::path(directory).is_absolute() ||
      directory.find('\0') != std::string::npos) {
    return Status(Code::kInvalidArgument,
                  "directory '" + directory + "' must be an absolute path on the server");
  }
  auto path = Resolve(directory);
  if (!path.ok()) return path.status();
  if (options_.save_root.empty()) return path.value().string();
  auto root = Resolve(options_.save_root);
  if (!root.ok()) return root.status();
  if (!IsBelow(path.value(), root.value())) {
    return Status(
        Code::kInvalidArgument,
        "directory '" + directory + "' is not below this server's '" + options_.save_root + "'");
  }
  return path.value().string();
}

Dispatcher::Answer Dispatcher::Save(const Call& call) {
  auto directory = CheckedDirectory(call.body);
  if (!directory.ok()) return directory.status();
  return RunAsJob(call, [this, path = directory.value()]() -> Result<ReplyBody> {
    Status s =
        SaveTables(tables_, path, options_.index, options_.num_servers, give_up_jobs_.get_token());
    if (!s.ok()) return s;
    return ReplyBody();
  });
}

Dispatcher::Answer Dispatcher::Load(const Call& call) {
  auto directory = CheckedDirectory(call.body);
  if (!directory.ok()) return directory.status();
  return RunAsJob(call, [this, path = directory.value()]() -> Result<ReplyBody> {
    Status s =
        LoadTables(tables_, path, options_.index, options_.num_servers, give_up_jobs_.get_token());
    if (!s.ok()) return s;
    return ReplyBody();
  });
}

}  // namespace sparsefleet
