#include "merge/unique.h"

#include <algorithm>
#include <random>
#include <unordered_map>

#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectEqual;
using testing::Test;

const Test kOrder("distinct keys come in order of first occurrence", [] {
  UniqueKeys unique;
  unique.Build(std::vector<Key>{9, 0, 9, ~Key{0}, 0, 9});
  Expect(std::ranges::equal(unique.keys(), std::vector<Key>{9, 0, ~Key{0}}), "keys");
  Expect(std::ranges::equal(unique.inverse(), std::vector<std::uint32_t>{0, 1, 0, 2, 1, 0}),
         "inverse");
  Expect(unique.has_repeats(), "repeats");
  unique.Build(std::vector<Key>{3, 2, 1});
  Expect(!unique.has_repeats() && unique.size() == 3, "state of the previous batch leaked");
  unique.Build({});
  ExpectEqual(unique.size(), 0U);
});

const Test kRandom("random batches agree with a plain map", [] {
  std::mt19937_64 random(5);
  UniqueKeys unique;
  for (const std::size_t size : {1, 17, 1000, 20000}) {
    std::vector<Key> keys(size);
    for (Key& key : keys) key = random() % (size / 2 + 1) << (random() % 2 * 40);
    unique.Build(keys);
    std::unordered_map<Key, std::uint32_t> wanted;
    for (std::size_t i = 0; i < size; ++i) {
      wanted.emplace(keys[i], static_cast<std::uint32_t>(wanted.size()));
      if (!ExpectEqual(unique.inverse()[i], wanted.at(keys[i]))) break;
    }
    ExpectEqual(unique.size(), wanted.size());
  }
});

const Test kSums("rows are summed in order of occurrence", [] {
  UniqueKeys unique;
  unique.Build(std::vector<Key>{4, 5, 4, 4});
  // In another order the small ones would not be lost next to the large one.
  const std::vector<float> rows = {1, 1e8F, 7, 8, 2, 1, 3, -1e8F};
  std::vector<float> out(4, 99.0F);
  SumRows(rows, unique.inverse(), 2, out);
  ExpectEqual(out, std::vector<float>({6, (1e8F + 1.0F) - 1e8F, 7, 8}));
});

const Test kPadding("padding has no key, is gathered as zeros and not summed", [] {
  UniqueKeys unique;
  const std::vector<Key> keys = {7, 0, 8, 0, 7, 0};
  const std::vector<PaddedRange> padded = {{1, 3, 0}, {4, 5, 7}};
  unique.Build(keys, padded);
  Expect(std::ranges::equal(unique.keys(), std::vector<Key>{7, 8, 0}), "keys");
  const std::vector<std::uint32_t> wanted = {0, kPaddingPlace, 1, 2, kPaddingPlace, 2};
  Expect(std::ranges::equal(unique.inverse(), wanted), "inverse");
  std::vector<float> gathered(12, 99.0F);
  GatherRows(std::vector<float>{1, 2, 3, 4, 5, 6}, unique.inverse(), 2, gathered);
  ExpectEqual(gathered, std::vector<float>({1, 2, 0, 0, 3, 4, 5, 6, 0, 0, 5, 6}));
  std::vector<float> summed(6, 99.0F);
  SumRows(std::vector<float>(12, 1.0F), unique.inverse(), 2, summed);
  ExpectEqual(summed, std::vector<float>({1, 1, 1, 1, 2, 2}));
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
