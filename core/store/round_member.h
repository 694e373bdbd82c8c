// One member of a group of workers that take optimizer steps together. Header only.
#pragma once

#include <cstdint>
#include <string_view>

namespace sparsefleet {

inline constexpr std::size_t kMaxGroupNameBytes = 255;
inline constexpr std::uint32_t kMaxGroupSize = 65536;

struct RoundMember {
  std::string_view group;
  std::uint32_t rank = 0;
  std::uint32_t size = 1;  // of the group; the same for all members
  // A member that is lost counts as having left; otherwise its loss ends the round.
  bool continue_without_lost = false;
};

}  // namespace sparsefleet
