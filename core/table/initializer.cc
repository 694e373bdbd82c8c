#include "table/initializer.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace sparsefleet {
namespace {

constexpr double kUnit53 = 0x1.0p-53;
constexpr double kBelowMinusTwo = 0.02275013194817921;  // P(Z < -2)

// One hash per (row, column); `row_hash` is already mixed.
std::uint64_t ColumnHash(std::uint64_t row_hash, std::uint64_t column) {
  return Mix64(row_hash ^ (column * 0xd1342543de82ef95ULL));
}

double HalfOpenUnit(std::uint64_t hash) { return static_cast<double>(hash >> 11) * kUnit53; }
double OpenUnit(std::uint64_t hash) { return (static_cast<double>(hash >> 11) + 0.5) * kUnit53; }

// numerator(r) / denominator(r), coefficients from the highest power down.
template <std::size_t N>
double Rational(const double (&numerator)[N], const double (&denominator)[N], double r) {
  double above = numerator[0];
  double below = denominator[0];
  for (std::size_t i = 1; i < N; ++i) {
    above = above * r + numerator[i];
    below = below * r + denominator[i];
  }
  return above / below;
}

constexpr double kCentreAbove[] = {2.5090809287301226727e+3, 3.3430575583588128105e+4,
                                   6.7265770927008700853e+4, 4.5921953931549871457e+4,
                                   1.3731693765509461125e+4, 1.9715909503065514427e+3,
                                   1.3314166789178437745e+2, 3.3871328727963666080e+0};
constexpr double kCentreBelow[] = {5.2264952788528545610e+3, 2.8729085735721942674e+4,
                                   3.9307895800092710610e+4, 2.1213794301586595867e+4,
                                   5.3941960214247511077e+3, 6.8718700749205790830e+2,
                                   4.2313330701600911252e+1, 1.0};
constexpr double kNearAbove[] = {7.74545014278341407640e-4, 2.27238449892691845833e-2,
                                 2.41780725177450611770e-1, 1.27045825245236838258e+0,
                                 3.64784832476320460504e+0, 5.76949722146069140550e+0,
                                 4.63033784615654529590e+0, 1.42343711074968357734e+0};
constexpr double kNearBelow[] = {1.05075007164441684324e-9, 5.47593808499534494600e-4,
                                 1.51986665636164571966e-2, 1.48103976427480074590e-1,
                                 6.89767334985100004550e-1, 1.67638483018380384940e+0,
                                 2.05319162663775882187e+0, 1.0};
constexpr double kFarAbove[] = {2.01033439929228813265e-7, 2.71155556874348757815e-5,
                                1.24266094738807843860e-3, 2.65321895265761230930e-2,
                                2.96560571828504891230e-1, 1.78482653991729133580e+0,
                                5.46378491116411436990e+0, 6.65790464350110377720e+0};
constexpr double kFarBelow[] = {2.04426310338993978564e-15, 1.42151175831644588870e-7,
                                1.84631831751005468180e-5,  7.86869131145613259100e-4,
                                1.48753612908506148525e-2,  1.36929880922735805310e-1,
                                5.99832206555887937690e-1,  1.0};

}  // namespace

double NormalQuantile(double u) {
  const double q = u - 0.5;
  if (std::abs(q) <= 0.425) return q * Rational(kCentreAbove, kCentreBelow, 0.180625 - q * q);
  const double r = std::sqrt(-std::log(q < 0 ? u : 1.0 - u));
  const double z = r <= 5.0 ? Rational(kNearAbove, kNearBelow, r - 1.6)
                            : Rational(kFarAbove, kFarBelow, r - 5.0);
  return q < 0 ? -z : z;
}

Initializer::Initializer(const InitializerSpec& spec, std::uint64_t seed)
    : spec_(spec),
      mixed_seed_(Mix64(seed)),
      below_end_(std::nextafter(static_cast<float>(spec.b), static_cast<float>(spec.a))) {}

void Initializer::Fill(Key key, std::span<float> row) const {
  if (spec_.kind == InitializerKind::kConstant) {
    std::fill(row.begin(), row.end(), static_cast<float>(spec_.a));
    return;
  }
  const std::uint64_t row_hash = Mix64(key ^ mixed_seed_);
  for (std::size_t column = 0; column < row.size(); ++column) {
    const std::uint64_t hash = ColumnHash(row_hash, column);
    switch (spec_.kind) {
      case InitializerKind::kUniform: {
        const auto value = static_cast<float>(spec_.a + (spec_.b - spec_.a) * HalfOpenUnit(hash));
        row[column] = value < static_cast<float>(spec_.b) ? value : below_end_;
        break;
      }
      case InitializerKind::kNormal:
        row[column] = static_cast<float>(spec_.a + spec_.b * NormalQuantile(OpenUnit(hash)));
        break;
      default: {
        const double u = kBelowMinusTwo + (1.0 - 2.0 * kBelowMinusTwo) * OpenUnit(hash);
        const double z = std::clamp(NormalQuantile(u), -2.0, 2.0);
        row[column] = static_cast<float>(spec_.a + spec_.b * z);
      }
    }
  }
}

double AdmissionDraw(std::uint64_t seed, Key key, std::uint64_t step) {
  return HalfOpenUnit(Mix64(Mix64(Mix64(seed ^ 0x61646d697421ULL) ^ key) ^ step));
}

}  // namespace sparsefleet
