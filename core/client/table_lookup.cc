#include "client/table_lookup.h"

#include "client/call.h"
#include "client/seconds.h"

namespace sparsefleet {

std::string TableSubject(std::string_view table) {
  std::string subject = "table '";
  return subject.append(table).append("': ");
}

Status CheckNumSections(std::string_view what, std::size_t num_sections) {
  if (num_sections <= kMaxSections) return Status::Ok();
  return {Code::kTooLarge, std::string(what) + " of " + std::to_string(num_sections) +
                               " sections, but the limit is " + std::to_string(kMaxSections)};
}

CallClock::CallClock(double timeout_s)
    : deadline_(SteadyClock::now() + ToDuration(timeout_s)), away_before_(AwayTime()) {}

double CallClock::left_s() const {
  return ToSeconds(deadline_ + (AwayTime() - away_before_) - SteadyClock::now());
}

Result<TableInfo> AskTableInfo(ClientCore& core, std::string_view table, double timeout_s) {
  if (table.empty() || table.size() > kMaxTableNameBytes) {
    return Status(Code::kInvalidArgument, "a table name of " + std::to_string(table.size()) +
                                              " bytes, expected 1 to " +
                                              std::to_string(kMaxTableNameBytes));
  }
  const CallSpec spec{MessageType::kTableInfo, TableSubject(table), "asking for its shape at",
                      timeout_s};
  auto replies = CallAll(core, spec, Encode(TableRequest{table}));
  if (!replies.ok()) return replies.status();
  TableInfo whole;
  for (std::size_t i = 0; i < replies.value().size(); ++i) {
    auto info = DecodeTableInfo(replies.value()[i]);
    if (!info.ok()) return info.status().WithPrefix(spec.subject);
    if (i == 0) {
      whole = info.value();
    } else if (!whole.dense) {
      whole.size += info.value().size;
    }
  }
  core.tables.Put(table, whole);
  return whole;
}

Result<TableInfo> FindTable(ClientCore& core, std::string_view table, const CallClock& clock) {
  if (auto known = core.tables.Find(table)) return *known;
  return AskTableInfo(core, table, clock.left_s());
}

Result<TableInfo> FindTable(ClientCore& core, std::string_view table, bool dense,
                            const CallClock& clock) {
  auto info = FindTable(core, table, clock);
  if (!info.ok() || info.value().dense == dense) return info;
  return Status(
      Code::kInvalidArgument,
      TableSubject(table) + (dense ? "the table is sparse, but the request is for a dense one"
                                   : "the table is dense, but the request is for a sparse one"));
}

}  // namespace sparsefleet
