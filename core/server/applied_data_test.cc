#include "server/applied_data.h"

#include <cstdint>
#include <random>
#include <set>
#include <vector>

#include "testing/check.h"

namespace sparsefleet::testing {
namespace {

using State = AppliedData::State;

State Judge(const AppliedData& applied, DataMark mark) { return applied.Judge({&mark, 1}); }
void Add(AppliedData& applied, DataMark mark) { applied.Add({&mark, 1}); }

const Test kRanges("ranges of a stream join where they touch", [] {
  AppliedData applied;
  Add(applied, {1, 0, 4, 6});
  Add(applied, {1, 0, 0, 2});
  Add(applied, {2, 0, 7, 8});
  Expect(applied.All() == std::vector<DataMark>({{1, 0, 0, 2}, {1, 0, 4, 6}, {2, 0, 7, 8}}));
  Add(applied, {1, 0, 2, 4});
  Expect(applied.All() == std::vector<DataMark>({{1, 0, 0, 6}, {2, 0, 7, 8}}));
});

const Test kEpochs("an earlier epoch of a stream is applied, a later one is new", [] {
  AppliedData applied;
  Add(applied, {1, 3, 0, 9});
  Expect(Judge(applied, {1, 2, 50, 60}) == State::kApplied);
  Expect(Judge(applied, {1, 3, 2, 5}) == State::kApplied);
  Expect(Judge(applied, {1, 3, 8, 10}) == State::kMixed);
  Expect(Judge(applied, {1, 3, 9, 10}) == State::kNew);
  Expect(Judge(applied, {1, 4, 0, 1}) == State::kNew);
  Expect(Judge(applied, {2, 0, 0, 1}) == State::kNew);
  Add(applied, {1, 4, 0, 1});
  Expect(applied.All() == std::vector<DataMark>({{1, 4, 0, 1}}));
});

const Test kSeveral("marks that are applied and marks that are not make a push mixed", [] {
  AppliedData applied;
  Add(applied, {1, 0, 0, 5});
  const std::vector<DataMark> both = {{1, 0, 4, 5}, {1, 0, 5, 6}};
  Expect(applied.Judge(both) == State::kMixed);
  applied.Add(both);
  Expect(applied.Judge(both) == State::kApplied);
});

const Test kRandom("ranges agree with a set of positions", [] {
  std::mt19937 random(7);
  AppliedData applied;
  std::set<std::uint64_t> known;
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t begin = random() % 300;
    const std::uint64_t end = begin + 1 + random() % 4;
    std::uint64_t count = 0;
    for (auto at = begin; at < end; ++at) count += known.contains(at) ? 1 : 0;
    const State wanted = count == 0             ? State::kNew
                         : count == end - begin ? State::kApplied
                                                : State::kMixed;
    Expect(Judge(applied, {1, 0, begin, end}) == wanted);
    if (random() % 4 != 0) continue;
    Add(applied, {1, 0, begin, end});
    for (auto at = begin; at < end; ++at) known.insert(at);
  }
  std::set<std::uint64_t> found;
  std::uint64_t last = 0;
  for (const DataMark& mark : applied.All()) {
    Expect(mark.begin > last || found.empty(), "ranges touch");
    last = mark.end;
    for (auto at = mark.begin; at < mark.end; ++at) found.insert(at);
  }
  Expect(found == known);
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
