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

void CheckWidth(std::size_t dim) {
  const Places places = {2, kPaddingPlace, 0, 1, 1, kPaddingPlace, 2};
  const Lengths lengths = {3, 0, 2, 1, 1};
  Floats rows(3 * dim);
  Floats gradients(lengths.size() * dim);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i % 11) - 0.1F;
  for (std::size_t i = 0; i < gradients.size(); ++i) gradients[i] = static_cast<float>(i % 7) / 3;
  Floats out(gradients.size(), 99.0F);
  Floats sums(rows.size());
  SumBags({{rows, places}, lengths, dim}, dim, out.data());
  AddBagGradients({{rows, places}, lengths, dim}, dim, gradients.data(), sums);
  for (std::size_t c = 0; c < dim; ++c) {
    Floats column;
    Floats column_gradients;
    Floats column_sums(3);
    Floats column_out(lengths.size());
    for (std::size_t r = 0; r < 3; ++r) column.push_back(rows[r * dim + c]);
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      column_gradients.push_back(gradients[b * dim + c]);
    }
    const RowBags bags{{column, places}, lengths, 1};
    SumBags(bags, 1, column_out.data());
    AddBagGradients(bags, 1, column_gradients.data(), column_sums);
    for (std::size_t b = 0; b < lengths.size(); ++b) {
      ExpectEqual(out[b * dim + c], column_out[b]);
    }
    for (std::size_t r = 0; r < 3; ++r) ExpectEqual(sums[r * dim + c], column_sums[r]);
  }
}

const Test kWidths("rows of any width are summed as their columns are, one by one", [] {
  for (const std::size_t dim : {4, 8, 16, 32, 37}) CheckWidth(dim);
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
