// Finds tables for calls, in the directory or by asking the servers, and checks their kind.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "client/client_core.h"
#include "status/status.h"
#include "store/store.h"

namespace sparsefleet {

// "table 'ads': "
std::string TableSubject(std::string_view table);

// The same for the sections of a pull or push: "table 'ads' and 2 more: "
template <typename Section>
std::string TablesSubject(std::span<const Section> sections) {
  if (sections.empty()) return "";
  if (sections.size() == 1) return TableSubject(sections[0].table);
  std::string subject = "table '";
  subject.append(sections[0].table).append("' and ");
  return subject.append(std::to_string(sections.size() - 1)).append(" more: ");
}

// kTooLarge for more sections than a frame may have.
Status CheckNumSections(std::string_view what, std::size_t num_sections);

// The time left for a call that makes several requests.
// Time that calls of this thread spent waiting for unavailable servers does not count.
class CallClock {
 public:
  explicit CallClock(double timeout_s);
  double left_s() const;

 private:
  const SteadyClock::time_point deadline_;
  const SteadyClock::duration away_before_;
};

// Asks the servers; caches what does not change.
Result<TableInfo> AskTableInfo(ClientCore& core, std::string_view table, double timeout_s);

// The cached info, or the servers' answer. `size` of a sparse table may be out of date.
Result<TableInfo> FindTable(ClientCore& core, std::string_view table, const CallClock& clock);
// The same; kInvalidArgument if the table is of the other kind.
Result<TableInfo> FindTable(ClientCore& core, std::string_view table, bool dense,
                            const CallClock& clock);

}  // namespace sparsefleet
