#include "server/applied_data.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace sparsefleet {

AppliedData::State AppliedData::JudgeOne(const DataMark& mark) const {
  const auto found = streams_.find(mark.stream);
  if (found == streams_.end() || mark.epoch > found->second.epoch) return State::kNew;
  if (mark.epoch < found->second.epoch) return State::kApplied;
  const auto& ranges = found->second.ranges;
  // The last range that begins at or before the mark, and the first after that.
  const auto after = ranges.upper_bound(mark.begin);
  if (after != ranges.begin()) {
    const std::uint64_t end = std::prev(after)->second;
    if (end >= mark.end) return State::kApplied;
    if (end > mark.begin) return State::kMixed;
  }
  return after != ranges.end() && after->first < mark.end ? State::kMixed : State::kNew;
}

AppliedData::State AppliedData::Judge(std::span<const DataMark> marks) const {
  std::size_t applied = 0;
  for (const DataMark& mark : marks) {
    const State state = JudgeOne(mark);
    if (state == State::kMixed) return state;
    applied += state == State::kApplied ? 1 : 0;
  }
  if (applied == 0) return State::kNew;
  return applied == marks.size() ? State::kApplied : State::kMixed;
}

void AppliedData::Add(std::span<const DataMark> marks) {
  for (const DataMark& mark : marks) {
    Stream& stream = streams_[mark.stream];
    if (mark.epoch < stream.epoch || mark.begin >= mark.end) continue;
    if (mark.epoch > stream.epoch) stream = {mark.epoch, {}};
    auto& ranges = stream.ranges;
    std::uint64_t begin = mark.begin;
    std::uint64_t end = mark.end;
    auto next = ranges.upper_bound(begin);
    if (next != ranges.begin() && std::prev(next)->second >= begin) --next;
    while (next != ranges.end() && next->first <= end) {
      begin = std::min(begin, next->first);
      end = std::max(end, next->second);
      next = ranges.erase(next);
    }
    ranges.emplace_hint(next, begin, end);
  }
}

std::vector<DataMark> AppliedData::All() const {
  std::vector<DataMark> all;
  for (const auto& [number, stream] : streams_) {
    for (const auto& [begin, end] : stream.ranges) {
      all.push_back({number, stream.epoch, begin, end});
    }
  }
  return all;
}

}  // namespace sparsefleet
