#include "merge/row_bags.h"

#include <vector>

#include "merge/unique.h"
#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::ExpectEqual;
using testing::Test;
using Floats = std::vector<float>;
using Places = std::vector<std::uint32_t>;
using Lengths = std::vector<std::int64_t>;

const Test kSums("bags are summed side by side, and gradients go back to the distinct rows", [] {
  const Floats rows = {1, 2, 10, 20};
  const Places places = {0, 1, 1, 1};
  const Lengths lengths = {2, 0, 2};
  Floats out(9, 99.0F);
  SumBags({{rows, places}, lengths, 2}, 3, out.data());
  ExpectEqual(out, Floats({11, 22, 99, 0, 0, 99, 20, 40, 99}));

  const Floats gradients = {1, 2, 99, 5, 5, 99, 3, 4, 99};
  Floats sums = {100, 100, 0, 0};
  AddBagGradients({{rows, places}, lengths, 2}, 3, gradients.data(), sums);
  ExpectEqual(sums, Floats({101, 102, 7, 10}));
});

const Test kPadding("padding adds nothing and takes no gradient; a bag of padding is zeros", [] {
  const Floats rows = {3};
  const Places places = {kPaddingPlace, 0, kPaddingPlace};
  const Lengths lengths = {2, 1};
  Floats out(2, 99.0F);
  SumBags({{rows, places}, lengths, 1}, 1, out.data());
  ExpectEqual(out, Floats({3, 0}));
  const Floats gradients = {5, 7};
  Floats sums = {0};
  AddBagGradients({{rows, places}, lengths, 1}, 1, gradients.data(), sums);
  ExpectEqual(sums, Floats({5}));
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
