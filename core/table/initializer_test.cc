#include "table/initializer.h"

#include <cmath>
#include <vector>

#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectEqual;
using testing::ExpectNear;
using testing::Test;

const Test kQuantile("the normal quantile inverts the distribution function", [] {
  for (const double u : {1e-300, 1e-20, 1e-8, 0.001, 0.02, 0.074, 0.076, 0.3, 0.5}) {
    const double z = NormalQuantile(u);
    ExpectNear(0.5 * std::erfc(-z / std::sqrt(2.0)) / u, 1.0, 1e-12 * (1 + z * z));
    if (u > 1e-3) ExpectNear(NormalQuantile(1 - u), -z, 1e-12);
  }
});

std::vector<float> Draw(const InitializerSpec& spec, std::size_t rows, std::size_t dim) {
  const Initializer initializer(spec, 42);
  std::vector<float> values(rows * dim);
  for (std::size_t key = 0; key < rows; ++key) {
    initializer.Fill(key, std::span(values).subspan(key * dim, dim));
  }
  return values;
}

struct Moments {
  double mean = 0;
  double variance = 0;
};

Moments MomentsOf(const std::vector<float>& values) {
  Moments moments;
  for (const float x : values) moments.mean += x / double(values.size());
  for (const float x : values) {
    moments.variance += (x - moments.mean) * (x - moments.mean) / double(values.size());
  }
  return moments;
}

const Test kShapes("values have the requested distribution", [] {
  const auto uniform = Draw({InitializerKind::kUniform, -1, 3}, 20000, 8);
  for (const float x : uniform) {
    if (!Expect(x >= -1 && x < 3, "outside the range")) break;
  }
  ExpectNear(MomentsOf(uniform).mean, 1.0, 0.02);
  ExpectNear(MomentsOf(uniform).variance, 16.0 / 12, 0.02);

  const auto normal = Draw({InitializerKind::kNormal, 5, 2}, 20000, 8);
  ExpectNear(MomentsOf(normal).mean, 5.0, 0.03);
  ExpectNear(MomentsOf(normal).variance, 4.0, 0.06);

  const auto truncated = Draw({InitializerKind::kTruncatedNormal, 5, 2}, 20000, 8);
  for (const float x : truncated) {
    if (!Expect(x >= 1 && x <= 9, "beyond two deviations")) break;
  }
  ExpectNear(MomentsOf(truncated).mean, 5.0, 0.03);
  ExpectNear(MomentsOf(truncated).variance, 4.0 * 0.7737, 0.06);

  ExpectEqual(Draw({InitializerKind::kConstant, 0.25, 9}, 2, 2), std::vector<float>(4, 0.25F));
});

const Test kIndependent("neighbouring keys and columns are uncorrelated", [] {
  const std::size_t dim = 8;
  const auto values = Draw({InitializerKind::kNormal, 0, 1}, 20000, dim);
  double rows = 0;
  double columns = 0;
  for (std::size_t i = 0; i + dim < values.size(); ++i) {
    columns += values[i] * values[i + 1] / double(values.size());
    rows += values[i] * values[i + dim] / double(values.size());
  }
  ExpectNear(rows, 0, 0.02);
  ExpectNear(columns, 0, 0.02);
});

const Test kFormat("values never change: trained models depend on them", [] {
  std::vector<float> row(2);
  Initializer({InitializerKind::kUniform, 0, 1}, 7).Fill(123, row);
  const std::vector<float> wanted = {0.0253926404F, 0.0906811133F};
  ExpectEqual(row, wanted);
});

const Test kTinyRange("a range of one float is that float", [] {
  ExpectEqual(Draw({InitializerKind::kUniform, 1, 1}, 1, 1)[0], 1.0F);
  const float next = std::nextafter(1.0F, 2.0F);
  for (const float x : Draw({InitializerKind::kUniform, 1, next}, 100, 1)) ExpectEqual(x, 1.0F);
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
