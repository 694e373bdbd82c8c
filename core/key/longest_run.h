// The worst-case search length in a table with open addressing. Header only.
#pragma once

#include <algorithm>
#include <cstddef>

namespace sparsefleet {

// The most slots read by a search that stops at the first free one: the longest run of taken slots,
// wrapping around the end, plus the free one after it. 0 for an empty table.
template <typename Slots, typename IsTaken>
std::size_t LongestRun(const Slots& slots, IsTaken is_taken) {
  std::size_t longest = 0;
  std::size_t run = 0;
  for (std::size_t i = 0; i < 2 * slots.size() && run < slots.size(); ++i) {
    run = is_taken(slots[i % slots.size()]) ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  return std::min(longest + 1, slots.size());
}

}  // namespace sparsefleet
