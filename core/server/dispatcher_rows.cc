// Requests that move or remove whole rows: shrink, erase, cuts, import, save and load.
#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>

#include "server/dispatcher.h"
#include "table/dump.h"

namespace sparsefleet {
namespace {

constexpr std::uint32_t kCutOnlyDirty = 1;
constexpr std::uint32_t kCutClearDirty = 2;
constexpr std::size_t kRowsHeadBytes = 64;  // of EncodeRows: lengths and padding

std::size_t RowBytes(const SparseTable& table) {
  return sizeof(Key) + sizeof(float) * (table.dim() + table.state_dim()) +
         sizeof(std::uint32_t) * table.counter_dim();
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

Result<std::string> Dispatcher::CheckedDirectory(std::span<const std::byte> body) const {
  auto text = DecodeText(body);
  if (!text.ok()) return text.status();
  const std::string directory(text.value());
  const auto path = std::filesystem::path(directory).lexically_normal();
  if (!path.is_absolute() || directory.find('\0') != std::string::npos) {
    return Status(Code::kInvalidArgument,
                  "directory '" + directory + "' must be an absolute path on the server");
  }
  if (!options_.save_root.empty() &&
      !IsBelow(path, std::filesystem::path(options_.save_root).lexically_normal())) {
    return Status(
        Code::kInvalidArgument,
        "directory '" + directory + "' is not below this server's '" + options_.save_root + "'");
  }
  return path.string();
}

Dispatcher::Answer Dispatcher::Save(const Call& call) {
  auto directory = CheckedDirectory(call.body);
  if (!directory.ok()) return directory.status();
  return RunAsJob(call, [this, path = directory.value()]() -> Result<ReplyBody> {
    Status s = SaveTables(tables_, path, options_.index, options_.num_servers);
    if (!s.ok()) return s;
    return ReplyBody();
  });
}

Dispatcher::Answer Dispatcher::Load(const Call& call) {
  auto directory = CheckedDirectory(call.body);
  if (!directory.ok()) return directory.status();
  return RunAsJob(call, [this, path = directory.value()]() -> Result<ReplyBody> {
    Status s = LoadTables(tables_, path, options_.index, options_.num_servers);
    if (!s.ok()) return s;
    return ReplyBody();
  });
}

}  // namespace sparsefleet
