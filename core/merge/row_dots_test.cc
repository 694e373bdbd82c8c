#include "merge/row_dots.h"

#include <cmath>
#include <random>
#include <vector>

#include "merge/unique.h"
#include "optimizer/kernels.h"
#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectEqual;
using testing::Test;
using Floats = std::vector<float>;
using Places = std::vector<std::uint32_t>;

const Test kProducts("each row on the left is multiplied with its group on the right", [] {
  const Floats left = {1, 2, 3, 4};
  const Floats right = {1, 0, 0, 1, 5, 6};
  const Places left_places = {1, 0};
  const Places right_places = {0, 1, 2, 2, 2, 0};
  Floats out(6, 99.0F);
  DotRows({left, left_places}, {right, right_places}, 2, out);
  ExpectEqual(out, Floats({3, 4, 39, 17, 17, 1}));

  const Floats gradients = {1, 10, 100, 1, 1, 1};
  Floats left_sums(4, 99.0F);
  Floats right_sums(6, 99.0F);
  SumDotGradients(gradients, {left, left_places}, {right, right_places}, 2, left_sums, right_sums);
  ExpectEqual(left_sums, Floats({11, 12, 501, 610}));
  ExpectEqual(right_sums, Floats({4, 6, 30, 40, 302, 404}));
});

const Test kPadding("padding on either side gives 0 and takes no gradient", [] {
  const Floats rows = {2, 3};
  const Places left = {0, kPaddingPlace};
  const Places right = {1, kPaddingPlace, 0, 0};
  Floats out(4, 99.0F);
  DotRows({rows, left}, {rows, right}, 1, out);
  ExpectEqual(out, Floats({6, 0, 0, 0}));
  Floats sums(2, 99.0F);
  SumDotGradients(out, {rows, left}, {rows, right}, 1, {}, sums);
  ExpectEqual(sums, Floats({0, 12}));
  DotRows({{}, {}}, {{}, {}}, 1, {});
});

const Test kOneTable("a row times itself gets both gradients, in one array of sums", [] {
  const Floats rows = {2, 5};
  const Places places = {0};
  Floats sums(2, 99.0F);
  const Floats gradient = {3};
  SumDotGradients(gradient, {rows, places}, {rows, places}, 2, sums, sums);
  ExpectEqual(sums, Floats({12, 30}));
});

const Test kSameBits("every instruction set gives the same bits, whatever the width", [] {
#if defined(__x86_64__)
  if (!HasAvx2()) return;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (std::size_t dim = 0; dim < 100; ++dim) {
    Floats a(dim);
    Floats b(dim);
    double wanted = 0;
    for (std::size_t i = 0; i < dim; ++i) {
      a[i] = normal(random);
      b[i] = normal(random);
      wanted += static_cast<double>(a[i]) * b[i];
    }
    const float found = BaselineKernels().dot(a.data(), b.data(), dim);
    ExpectEqual(Avx2Kernels().dot(a.data(), b.data(), dim), found);
    Expect(std::abs(found - wanted) < 1e-4, "far from the sum of products");
    Floats once = a;
    Floats again = a;
    BaselineKernels().add_scaled(once.data(), b.data(), dim, 0.3F);
    Avx2Kernels().add_scaled(again.data(), b.data(), dim, 0.3F);
    ExpectEqual(once, again);
  }
#endif
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
