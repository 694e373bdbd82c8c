#include "client/client_cut.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/call.h"
#include "client/table_lookup.h"

namespace sparsefleet {
namespace {

constexpr std::uint32_t kOnlyDirty = 1;
constexpr std::uint32_t kClearDirty = 2;
constexpr std::uint64_t kRowsHeadBytes = 512;
constexpr double kMaxCloseTime_s = 5.0;

class ClientCut final : public StoreCut {
 public:
  ClientCut(std::shared_ptr<ClientCore> core, std::string table, TableInfo info, bool clears,
            double timeout_s)
      : core_(std::move(core)),
        subject_(TableSubject(table)),
        row_bytes_(sizeof(Key) + 4 * (std::uint64_t{info.dim} + info.state_dim + info.counter_dim)),
        timeout_s_(timeout_s),
        clears_(clears),
        ids_(core_->num_servers()) {}
  ~ClientCut() override { (void)Close(); }

  void SetId(std::uint32_t server, std::uint64_t id) { ids_[server] = id; }
  Result<bool> Next(std::size_t max_rows, RowBatch& out) override;

 private:
  Result<RowBatch> NextOf(std::uint32_t server, std::size_t max_rows);
  // Requests past every server's end, where the server clears its dirty bits.
  void CommitAtServers();
  Status Close();

  const std::shared_ptr<ClientCore> core_;
  const std::string subject_;
  const std::uint64_t row_bytes_;
  const double timeout_s_;
  bool clears_;
  std::vector<std::optional<std::uint64_t>> ids_;  // by server; none: closed there
  std::uint32_t server_ = 0;                       // the server whose rows are being read
  Status failure_;
};

Result<bool> ClientCut::Next(std::size_t max_rows, RowBatch& out) {
  out.clear();
  if (!failure_.ok()) return failure_;
  if (max_rows == 0) {
    return Status(Code::kInvalidArgument, subject_ + "next of cut: max_rows is 0, expected >= 1");
  }
  for (; server_ < ids_.size(); ++server_) {
    auto rows = NextOf(server_, max_rows);
    if (!rows.ok()) {
      failure_ = rows.status();
      (void)Close();
      return failure_;
    }
    if (!rows.value().keys.empty()) {
      out = std::move(rows).value();
      return true;
    }
  }
  if (clears_) CommitAtServers();
  (void)Close();
  return false;
}

void ClientCut::CommitAtServers() {
  // A server that cannot be reached keeps its rows dirty: they are sent again, none is lost.
  for (std::uint32_t i = 0; i < ids_.size(); ++i) {
    if (ids_[i] && !core_->links[i]->is_lost()) (void)NextOf(i, 1);
  }
  clears_ = false;
}

Result<RowBatch> ClientCut::NextOf(std::uint32_t server, std::size_t max_rows) {
  const std::uint64_t limit = core_->links[server]->frame_limit().bytes;
  const std::uint64_t room = limit > kRowsHeadBytes ? limit - kRowsHeadBytes : 0;
  NextCutRequest request;
  request.cut = ids_[server].value_or(0);
  request.max_rows =
      std::min<std::uint64_t>(max_rows, std::max<std::uint64_t>(1, room / row_bytes_));
  const CallSpec spec{MessageType::kNextCut, subject_, "next rows of a cut from", timeout_s_};
  auto reply = CallOne(*core_, spec, server, Encode(request));
  if (!reply.ok()) return reply.status();
  auto named = DecodeRows(reply.value());
  if (!named.ok()) return named.status().WithPrefix(subject_);
  return std::move(named).value().rows;
}

Status ClientCut::Close() {
  std::vector<ServerPart> parts;
  for (std::uint32_t i = 0; i < ids_.size(); ++i) {
    // A lost server forgets the client and its cuts on its own.
    if (ids_[i] && !core_->links[i]->is_lost()) parts.emplace_back(i, EncodeNumber(*ids_[i]));
    ids_[i].reset();
  }
  const CallSpec spec{MessageType::kCloseCut, subject_, "closing a cut on",
                      std::min(timeout_s_, kMaxCloseTime_s)};
  return RunCall(*core_, spec, parts);
}

}  // namespace

Result<std::unique_ptr<StoreCut>> OpenClientCut(std::shared_ptr<ClientCore> core,
                                                std::string_view table, bool only_dirty,
                                                bool clear_dirty, double timeout_s) {
  const CallClock clock(timeout_s);
  auto info = FindTable(*core, table, false, clock);
  if (!info.ok()) return info.status();
  TableRequest request{table};
  request.flags = (only_dirty ? kOnlyDirty : 0) | (clear_dirty ? kClearDirty : 0);
  std::vector<ServerPart> parts;
  for (std::uint32_t i = 0; i < core->num_servers(); ++i) parts.emplace_back(i, Encode(request));
  auto cut =
      std::make_unique<ClientCut>(core, std::string(table), info.value(), clear_dirty, timeout_s);
  const CallSpec spec{MessageType::kOpenCut, TableSubject(table), "opening a cut on",
                      clock.left_s()};
  const Status opened = RunCall(*core, spec, parts);
  // After a failure too: the destructor of `cut` closes it where it was opened.
  for (const auto& part : parts) {
    auto id = DecodeNumber(part.reply.body);
    if (id.ok()) cut->SetId(part.server, id.value());
  }
  if (!opened.ok()) return opened;
  return std::unique_ptr<StoreCut>(std::move(cut));
}

}  // namespace sparsefleet
