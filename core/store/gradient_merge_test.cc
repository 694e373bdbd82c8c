#include "store/gradient_merge.h"

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>
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
  GradientMerge merge;
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

const Test kOrder("a member's repeated keys are summed before merging with others", [] {
  const std::vector<Key> one = {1}, twice = {1, 1};
  const std::vector<float> big = {1e8F}, small = {3.0F, 3.0F}, summed = {6.0F};
  const Contribution a = Sparse("t", one, big), b = Sparse("t", twice, small, false);
  const Contribution c = Sparse("t", one, summed);
  const Contribution* repeated[] = {&a, &b};
  const Contribution* before[] = {&a, &c};
  GradientMerge first, second;
  Expect(Values(RequireOk(first.Build(repeated))[0].gradients) ==
             Values(RequireOk(second.Build(before))[0].gradients),
         "the same bits");
});

const Test kShared("several threads merge to the same bits as one", [] {
  constexpr std::size_t kDim = 64, kRows = 4'000, kMembers = 5, kSize = 700'001;
  std::vector<std::vector<Key>> keys(kMembers);
  std::vector<std::vector<float>> rows(kMembers), dense(kMembers);
  std::vector<Contribution> members;
  std::uint32_t seed = 1;
  const auto next = [&] { return seed = seed * 1664525U + 1013904223U; };
  for (std::size_t i = 0; i < kMembers; ++i) {
    for (std::size_t row = 0; row < kRows; ++row) keys[i].push_back(next() % 6'000);
    for (std::size_t at = 0; at < kRows * kDim; ++at) rows[i].push_back(1e-6F * (next() >> 8));
    for (std::size_t at = 0; at < kSize; ++at) dense[i].push_back(1e-6F * (next() >> 8));
    members.push_back(Sparse("ads", keys[i], rows[i], false));
    members[i].sections.push_back(Dense("net", dense[i]).sections[0]);
  }
  std::vector<const Contribution*> all;
  for (const Contribution& member : members) all.push_back(&member);
  std::size_t num_tasks = 0;
  const GradientMerge::Share share = [&](std::vector<std::function<void()>> tasks) {
    num_tasks += tasks.size();
    std::vector<std::jthread> threads;
    for (auto& task : tasks) threads.emplace_back(std::move(task));
  };
  GradientMerge serial, shared;
  const auto wanted = RequireOk(serial.Build(all));
  const auto found = RequireOk(shared.Build(all, {}, share));
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const std::size_t tasks =
      cores == 1 ? 0 : std::min<std::size_t>(cores, 3) + std::min<std::size_t>(cores, 8);
  Expect(num_tasks == tasks, "3 tasks for rows and 8 for dense elements, if there are cores");
  Require(found.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    Expect(std::ranges::equal(found[i].keys, wanted[i].keys), "the same keys");
    Expect(Values(found[i].gradients) == Values(wanted[i].gradients), "the same bits");
  }
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
  GradientMerge merge;
  const auto merged = RequireOk(merge.Build(all));
  Require(merged.size() == 1 && merged[0].gradients.size() == kSize);
  for (std::size_t i = 0; i < kSize; ++i) {
    if (merged[0].gradients[i] != ((one[i] + two[i]) + three[i]) * (1.0F / 3.0F)) {
      Fail("element " + std::to_string(i), Location::current());
      break;
    }
  }
});

const Test kSummed("summed tables are not divided", [] {
  const std::vector<Key> keys = {1, 2};
  const std::vector<float> rows = {1, 2}, gradient = {3, 5, 7};
  Contribution one = Sparse("ads", keys, rows);
  one.sections.push_back({"net", {}, gradient, true});
  const Contribution* all[] = {&one, &one, &one};
  GradientMerge merge;
  const auto merged = RequireOk(merge.Build(all, {"net"}));
  Require(merged.size() == 2);
  Expect(Values(merged[0].gradients) == std::vector<float>{3 * (1.0F / 3), 6 * (1.0F / 3)}, "mean");
  Expect(Values(merged[1].gradients) == std::vector<float>{9, 15, 21}, "sum");
});

const Test kParts("gradients in parts merge to the same bits as contiguous ones", [] {
  constexpr std::size_t kSize = 20'011;
  std::vector<float> values[3];
  std::vector<std::span<const float>> parts[3];
  const std::size_t cuts[3][3] = {{0, 5, 9'000}, {4'096, 4'096, 4'097}, {1, 8'192, kSize}};
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t at = 0; at < kSize; ++at) {
      values[i].push_back(1.0F / static_cast<float>(at * (i + 3) + 7));
    }
    std::size_t begin = 0;
    for (const std::size_t end : {cuts[i][0], cuts[i][1], cuts[i][2], kSize}) {
      parts[i].push_back(std::span<const float>(values[i]).subspan(begin, end - begin));
      begin = end;
    }
  }
  for (const std::size_t count : {std::size_t{2}, std::size_t{3}}) {
    std::vector<Contribution> whole(count), apart(count);
    std::vector<const Contribution*> all_whole, all_apart;
    for (std::size_t i = 0; i < count; ++i) {
      whole[i] = Dense("net", values[i]);
      PushSection section{"net", {}, {}, true};
      section.parts = parts[i];
      apart[i].sections.push_back(section);
      all_whole.push_back(&whole[i]);
      all_apart.push_back(&apart[i]);
    }
    GradientMerge first, second;
    Expect(Values(RequireOk(first.Build(all_whole))[0].gradients) ==
               Values(RequireOk(second.Build(all_apart))[0].gradients),
           "the same bits");
    ExpectEqual(RequireOk(second.Build(all_apart))[0].gradients[kSize - 1],
                RequireOk(first.Build(all_whole))[0].gradients[kSize - 1]);
  }
});

const Test kOne("a single contribution is returned unchanged", [] {
  const std::vector<float> first = {1, 2}, second = {3};
  const std::span<const float> parts[] = {first, second};
  Contribution only;
  only.sections.push_back({"net", {}, {}, true});
  only.sections[0].parts = parts;
  const Contribution* all[] = {&only};
  GradientMerge merge;
  const auto merged = RequireOk(merge.Build(all));
  Require(merged.size() == 1);
  Expect(merged[0].parts.data() == parts && merged[0].gradients.empty(), "the same parts");
});

const Test kTables("members may contribute different tables, or none", [] {
  const std::vector<Key> keys = {1};
  const std::vector<float> values = {4};
  const Contribution a = Sparse("one", keys, values), b = Sparse("two", keys, values), c;
  const Contribution* all[] = {&a, &c, &b, &c};
  GradientMerge merge;
  const auto merged = RequireOk(merge.Build(all));
  Require(merged.size() == 2);
  Expect(merged[0].table == "one" && merged[1].table == "two", "order of first mention");
  ExpectEqual(merged[1].gradients[0], 1.0F);
  const Contribution* nothing[] = {&c, &c};
  ExpectEqual(RequireOk(merge.Build(nothing)).size(), 0u);
});

const Test kMisfits("contributions of different shapes are rejected", [] {
  const std::vector<Key> keys = {1, 2};
  const std::vector<float> two = {1, 2}, four = {1, 2, 3, 4};
  const Contribution narrow = Sparse("t", keys, two), wide = Sparse("t", keys, four);
  const Contribution dense2 = Dense("t", two), dense4 = Dense("t", four);
  GradientMerge merge;
  const std::vector<std::pair<const Contribution*, const Contribution*>> pairs = {
      {&narrow, &wide}, {&dense2, &dense4}, {&narrow, &dense2}};
  for (const auto& [first, second] : pairs) {
    const Contribution* both[] = {first, second};
    ExpectCode(merge.Build(both).status(), Code::kShapeMismatch);
  }
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
