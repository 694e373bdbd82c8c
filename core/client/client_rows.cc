// Calls that move or remove whole rows: shrink, erase, import, cuts.
#include <algorithm>
#include <string>
#include <vector>

#include "client/call.h"
#include "client/client.h"
#include "client/client_core.h"
#include "client/client_cut.h"
#include "client/key_partition.h"
#include "client/table_lookup.h"

namespace sparsefleet {
namespace {

// Rows are sent in frames of about this size: large enough for full speed, small enough to hold.
constexpr std::uint64_t kImportFrameBytes = 8 << 20;
constexpr std::uint64_t kRowsHeadBytes =
    512;  // upper bound on EncodeRows' name, lengths and padding

Result<std::uint64_t> SumOfNumbers(std::span<const ServerPart> parts, const std::string& subject) {
  std::uint64_t sum = 0;
  for (const auto& part : parts) {
    auto number = DecodeNumber(part.reply.body);
    if (!number.ok()) return number.status().WithPrefix(subject);
    sum += number.value();
  }
  return sum;
}

Status CheckRows(std::string_view table, const RowBatch& rows, const TableInfo& info) {
  const std::size_t n = rows.keys.size();
  const auto is_wrong = [n](std::size_t found, std::size_t width, bool may_lack) {
    return found != n * width && !(may_lack && found == 0);
  };
  const std::string subject = TableSubject(table) + "import of " + std::to_string(n) + " rows: ";
  if (n > INT32_MAX) {
    return {Code::kTooLarge, subject + "at most " + std::to_string(INT32_MAX) + " at once"};
  }
  const struct {
    const char* name;
    std::size_t found;
    std::size_t width;
    bool may_lack;
  } columns[] = {{"values", rows.values.size(), info.dim, false},
                 {"state", rows.state.size(), info.state_dim, true},
                 {"counters", rows.counters.size(), info.counter_dim, true}};
  for (const auto& column : columns) {
    if (!is_wrong(column.found, column.width, column.may_lack)) continue;
    return {Code::kShapeMismatch, subject + std::to_string(column.found) + " " + column.name +
                                      ", expected " + std::to_string(n * column.width)};
  }
  return Status::Ok();
}

// Rows `positions` of `rows`, each column `width` wide.
template <typename T>
void Pick(const std::vector<T>& from, std::span<const std::uint32_t> positions, std::size_t width,
          std::vector<T>& to) {
  if (from.empty()) return;
  to.reserve(positions.size() * width);
  for (const std::uint32_t position : positions) {
    const auto first = from.begin() + static_cast<std::ptrdiff_t>(position * width);
    to.insert(to.end(), first, first + static_cast<std::ptrdiff_t>(width));
  }
}

RowBatch PickRows(const RowBatch& rows, std::span<const std::uint32_t> positions,
                  const TableInfo& info) {
  RowBatch picked;
  Pick(rows.keys, positions, 1, picked.keys);
  Pick(rows.values, positions, info.dim, picked.values);
  Pick(rows.state, positions, info.state_dim, picked.state);
  Pick(rows.counters, positions, info.counter_dim, picked.counters);
  return picked;
}

}  // namespace

Result<std::uint64_t> Client::Shrink(std::string_view table, std::uint64_t step, double timeout_s) {
  const CallClock clock(timeout_s);
  if (auto info = FindTable(*core_, table, false, clock); !info.ok()) return info.status();
  TableRequest request{table};
  request.number = step;
  std::vector<ServerPart> parts;
  for (std::uint32_t i = 0; i < core_->num_servers(); ++i) parts.emplace_back(i, Encode(request));
  const CallSpec spec{MessageType::kShrink, TableSubject(table), "shrinking it on", clock.left_s(),
                      true};
  if (Status s = RunCall(*core_, spec, parts); !s.ok()) return s;
  return SumOfNumbers(parts, spec.subject);
}

Result<std::uint64_t> Client::Erase(std::string_view table, std::span<const Key> keys,
                                    double timeout_s) {
  const CallClock clock(timeout_s);
  if (auto info = FindTable(*core_, table, false, clock); !info.ok()) return info.status();
  if (keys.size() > INT32_MAX) {
    return Status(Code::kTooLarge, TableSubject(table) + std::to_string(keys.size()) +
                                       " keys in one erase, expected at most " +
                                       std::to_string(INT32_MAX));
  }
  KeyPartition partition;
  partition.Build(keys, core_->num_servers());
  std::vector<ServerPart> parts;
  for (std::uint32_t i = 0; i < core_->num_servers(); ++i) {
    if (partition.SizeOf(i) > 0)
      parts.emplace_back(i, Encode(EraseRequest{table, partition.KeysOf(i)}));
  }
  const CallSpec spec{MessageType::kErase, TableSubject(table), "erasing rows on", clock.left_s()};
  if (Status s = RunCall(*core_, spec, parts); !s.ok()) return s;
  return SumOfNumbers(parts, spec.subject);
}

Status Client::Import(std::string_view table, const RowBatch& rows, double timeout_s) {
  const CallClock clock(timeout_s);
  auto found = FindTable(*core_, table, false, clock);
  if (!found.ok()) return found.status();
  const TableInfo& info = found.value();
  if (Status s = CheckRows(table, rows, info); !s.ok()) return s;
  std::uint64_t frame_bytes = kImportFrameBytes;
  for (const auto& link : core_->links) {
    frame_bytes = std::min(frame_bytes, link->frame_limit().bytes);
  }
  const std::uint64_t row_bytes =
      sizeof(Key) + 4 * (std::uint64_t{info.dim} + info.state_dim + info.counter_dim);
  const std::uint64_t room = frame_bytes > kRowsHeadBytes ? frame_bytes - kRowsHeadBytes : 0;
  const std::size_t rows_per_frame = std::max<std::uint64_t>(1, room / row_bytes);
  KeyPartition partition;
  partition.Build(rows.keys, core_->num_servers());
  // In turns of one frame per server.
  for (std::size_t begin = 0;; begin += rows_per_frame) {
    std::vector<ServerPart> parts;
    for (std::uint32_t i = 0; i < core_->num_servers(); ++i) {
      if (begin >= partition.SizeOf(i)) continue;
      const auto positions = partition.positions().subspan(
          partition.BeginOf(i) + begin, std::min(rows_per_frame, partition.SizeOf(i) - begin));
      parts.emplace_back(i, EncodeRows(table, PickRows(rows, positions, info)));
    }
    if (parts.empty()) return Status::Ok();
    const CallSpec spec{MessageType::kImport, TableSubject(table), "importing rows to",
                        clock.left_s()};
    if (Status s = RunCall(*core_, spec, parts); !s.ok()) return s;
  }
}

Result<std::unique_ptr<StoreCut>> Client::OpenCut(std::string_view table, bool only_dirty,
                                                  bool clear_dirty, double timeout_s) {
  return OpenClientCut(core_, table, only_dirty, clear_dirty, timeout_s);
}

}  // namespace sparsefleet
