// Receives changes to groups, barriers and rounds that a server must remember.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "status/status.h"
#include "store/gradient_merge.h"
#include "table/table_set.h"

namespace sparsefleet {

// A member of a group, and the properties of its group.
struct GroupMember {
  std::string group;
  std::uint32_t size = 0;
  bool continue_without_lost = false;
  std::uint64_t past_clocks = 0;
  bool has_losses = false;
  std::uint32_t rank = 0;
  std::uint64_t owner_id = 0;
  std::string owner_name;
  std::uint64_t owner_session = 0;
  std::uint8_t presence = 0;  // 0 present, 1 left, 2 lost
  bool was_lost = false;
  std::uint64_t clock = 0;
};

// Thread-safe. All functions except Apply() run under the caller's lock and must not call back.
class RoundLog {
 public:
  virtual ~RoundLog() = default;
  virtual void OnMember(const GroupMember& member) = 0;
  virtual void OnGroupGone(const std::string& group) = 0;
  // All members have arrived; called before the first is notified. Each is (owner, ticket).
  virtual Status OnBarrier(std::span<const std::pair<std::uint64_t, std::uint64_t>> members) = 0;
  // Applies a round as one push.
  virtual Result<PushResult> Apply(const std::string& group, std::uint64_t round,
                                   std::span<const Contribution* const> contributions,
                                   std::span<const PushSection> merged, std::uint64_t step) = 0;
};

}  // namespace sparsefleet
