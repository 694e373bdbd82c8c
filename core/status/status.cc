#include "status/status.h"

#include <algorithm>
#include <array>

namespace sparsefleet {

namespace {

constexpr std::array<std::string_view, 22> kNames = {"OK",
                                                     "INVALID_ARGUMENT",
                                                     "UNKNOWN_TABLE",
                                                     "TABLE_CONFLICT",
                                                     "SHAPE_MISMATCH",
                                                     "NON_FINITE",
                                                     "DEADLINE_EXCEEDED",
                                                     "PEER_LOST",
                                                     "AUTH_FAILED",
                                                     "PROTOCOL",
                                                     "VERSION_MISMATCH",
                                                     "TOO_LARGE",
                                                     "NOT_FOUND",
                                                     "SHUTTING_DOWN",
                                                     "SERVER_RESTARTED",
                                                     "IO",
                                                     "CORRUPT",
                                                     "INTERNAL",
                                                     "CHECKPOINT",
                                                     "NOT_OWNER",
                                                     "ANSWER_LOST",
                                                     "DISK_FULL"};

}  // namespace

std::string CodeName(Code code) {
  const auto number = static_cast<std::size_t>(code);
  if (number < kNames.size()) return std::string(kNames[number]);
  return "CODE_" + std::to_string(number);
}

std::optional<Code> CodeNamed(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<Code>(found - kNames.begin());
}

Status Status::WithPrefix(std::string_view prefix) const {
  if (ok()) return *this;
  return {code_, std::string(prefix) + message_};
}

}  // namespace sparsefleet
