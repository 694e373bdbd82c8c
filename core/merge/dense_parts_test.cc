#include "merge/dense_parts.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectEqual;
using testing::Test;

using Floats = std::vector<float>;

const Floats kFirst{1, 2, 3};
const Floats kNone;
const Floats kLast{4, 5};
const std::vector<std::span<const float>> kParts{kFirst, kNone, kLast};

const Test kJoin("parts are joined in order", [] {
  Floats out(5, -1);
  JoinParts(kParts, out);
  ExpectEqual(SizeOfParts(kParts), 5U);
  Expect(out == Floats{1, 2, 3, 4, 5}, "all parts, an empty one among them");
});

const Test kAdd("parts are added in place", [] {
  Floats out{10, 20, 30, 40, 50};
  AddParts(kParts, out);
  Expect(out == Floats{11, 22, 33, 44, 55}, "sums");
});

const Test kStep("a step subtracts the rate times the gradient", [] {
  Floats values{1, 1, 1, 1, 1};
  Expect(StepByParts(kParts, 0.5F, values), "all finite");
  Expect(values == Floats{0.5F, 0, -0.5F, -1, -1.5F}, "values");
});

const Test kNonFinite("a step with NaN or infinity in any part changes nothing", [] {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const Floats wrong{4, bad};
    const std::vector<std::span<const float>> parts{kFirst, wrong};
    Floats values{1, 1, 1, 1, 1};
    Expect(!StepByParts(parts, 0.5F, values), "refused");
    Expect(values == Floats(5, 1), "as before");
  }
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
