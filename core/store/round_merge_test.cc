#include "store/round_merge.h"

#include <vector>

#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

Contribution Sparse(std::string_view table, std::span<const Key> keys,
                    std::span<const float> values, bool unique = true) {
  Contribution contribution;
  PushSection section{table, keys, values};
  section.keys_are_unique = unique;
  contribution.sections.push_back(section);
  return contribution;
}

Contribution Dense(std::string_view table, std::span<const float> values) {
  Contribution contribution;
  contribution.sections.push_back({table, {}, values, true});
  return contribution;
}

std::vector<float> Values(std::span<const float> values) { return {values.begin(), values.end()}; }

const Test kSparse("equal keys are added and all divided by the number of members", [] {
  const std::vector<Key> keys1 = {9, 4}, keys2 = {4, 7, 4};
  const std::vector<float> values1 = {1, 2, 3, 4}, values2 = {1, 1, 10, 20, 2, 2};
  const Contribution a = Sparse("ads", keys1, values1), b = Sparse("ads", keys2, values2, false);
  const Contribution* both[] = {&a, &b};
  RoundMerge merge;
  for (int again = 0; again < 2; ++again) {
    const auto merged = RequireOk(merge.Build(both));
    Require(merged.size() == 1);
    Expect(merged[0].keys_are_unique, "unique");
    Expect(
        std::vector<Key>(merged[0].keys.begin(), merged[0].keys.end()) == std::vector<Key>{9, 4, 7},
        "keys");
    Expect(Values(merged[0].gradients) == std::vector<float>{0.5, 1, 3, 3.5, 5, 10}, "values");
  }
});

const Test kOrder("a member's own repeats are summed before they meet the others'", [] {
  const std::vector<Key> one = {1}, twice = {1, 1};
  const std::vector<float> big = {1e8F}, small = {3.0F, 3.0F}, summed = {6.0F};
  const Contribution a = Sparse("t", one, big), b = Sparse("t", twice, small, false);
  const Contribution c = Sparse("t", one, summed);
  const Contribution* repeated[] = {&a, &b};
  const Contribution* before[] = {&a, &c};
  RoundMerge first, second;
  Expect(Values(RequireOk(first.Build(repeated))[0].gradients) ==
             Values(RequireOk(second.Build(before))[0].gradients),
         "the same bits");
});

const Test kDense("dense gradients of any length are averaged", [] {
  constexpr std::size_t kSize = 10'001;
  std::vector<float> one(kSize), two(kSize), three(kSize);
  for (std::size_t i = 0; i < kSize; ++i) {
    one[i] = static_cast<float>(i);
    two[i] = static_cast<float>(2 * i + 1);
    three[i] = 0.5F;
  }
  const Contribution a = Dense("net", one), b = Dense("net", two), c = Dense("net", three);
  const Contribution* all[] = {&a, &b, &c};
  RoundMerge merge;
  const auto merged = RequireOk(merge.Build(all));
  Require(merged.size() == 1 && merged[0].gradients.size() == kSize);
  for (std::size_t i = 0; i < kSize; ++i) {
    if (merged[0].gradients[i] != ((one[i] + two[i]) + three[i]) * (1.0F / 3.0F)) {
      Fail("element " + std::to_string(i), Location::current());
      break;
    }
  }
});

const Test kTables("members may bring different tables, or none", [] {
  const std::vector<Key> keys = {1};
  const std::vector<float> values = {4};
  const Contribution a = Sparse("one", keys, values), b = Sparse("two", keys, values), c;
  const Contribution* all[] = {&a, &c, &b, &c};
  RoundMerge merge;
  const auto merged = RequireOk(merge.Build(all));
  Require(merged.size() == 2);
  Expect(merged[0].table == "one" && merged[1].table == "two", "order of first mention");
  ExpectEqual(merged[1].gradients[0], 1.0F);
  const Contribution* nothing[] = {&c, &c};
  ExpectEqual(RequireOk(merge.Build(nothing)).size(), 0u);
});

const Test kMisfits("contributions that do not fit one another are refused", [] {
  const std::vector<Key> keys = {1, 2};
  const std::vector<float> two = {1, 2}, four = {1, 2, 3, 4};
  const Contribution narrow = Sparse("t", keys, two), wide = Sparse("t", keys, four);
  const Contribution dense2 = Dense("t", two), dense4 = Dense("t", four);
  RoundMerge merge;
  const std::vector<std::pair<const Contribution*, const Contribution*>> pairs = {
      {&narrow, &wide}, {&dense2, &dense4}, {&narrow, &dense2}};
  for (const auto& [first, second] : pairs) {
    const Contribution* both[] = {first, second};
    ExpectCode(merge.Build(both).status(), Code::kShapeMismatch);
  }
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
