#include "transport/bf16.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "optimizer/kernels.h"
#include "testing/check.h"

namespace sparsefleet::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float Wide(Bf16 value) { return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16); }

std::vector<const Bf16Kernels*> AllKernels() {
#if defined(__x86_64__)
  if (HasAvx2()) return {&BaselineBf16(), &Avx2Bf16()};
#endif
  return {&BaselineBf16()};
}

// Any bits, most of them of numbers with many digits.
std::vector<float> RandomFloats(std::size_t n) {
  std::mt19937 random(7);
  std::vector<float> values(n);
  for (float& value : values) value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
  return values;
}

const Test kExact("what 16 bits can hold survives both ways of rounding", [] {
  for (const Bf16Kernels* kernels : AllKernels()) {
    std::vector<float> values;
    for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
      const float value = Wide(static_cast<Bf16>(bits));
      if (!std::isnan(value)) values.push_back(value);
    }
    std::vector<Bf16> narrow(values.size());
    std::vector<float> wide(values.size());
    for (const bool by_chance : {false, true}) {
      if (by_chance) {
        kernels->narrow_by_chance(narrow.data(), values.data(), values.size(), 3, 5);
      } else {
        kernels->narrow(narrow.data(), values.data(), values.size());
      }
      kernels->widen(wide.data(), std::as_bytes(std::span(narrow)).data(), wide.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        const auto found = std::bit_cast<std::uint32_t>(wide[i]);
        if (found != std::bit_cast<std::uint32_t>(values[i])) Expect(false, Show(values[i]));
      }
    }
  }
});

const Test kNearest("rounding to the nearest errs by half a step at most, ties go to even", [] {
  for (const Bf16Kernels* kernels : AllKernels()) {
    std::vector<float> values = {1.00390625f, 1.01171875f, -1.00390625f, 0.1f};
    std::vector<Bf16> narrow(values.size());
    kernels->narrow(narrow.data(), values.data(), values.size());
    ExpectEqual(Wide(narrow[0]), 1.0f);
    ExpectEqual(Wide(narrow[1]), 1.015625f);
    ExpectEqual(Wide(narrow[2]), -1.0f);
    ExpectNear(Wide(narrow[3]), 0.1, 0.1 / 512);
  }
});

const Test kSpecial("NaN and infinity stay what they are, and finite numbers stay finite", [] {
  const float nan = std::bit_cast<float>(0x7f800001U);  // its upper half alone is infinity
  const float largest = std::numeric_limits<float>::max();
  const std::vector<float> values = {nan,       -nan,       std::nanf(""),
                                     kInfinity, -kInfinity, std::bit_cast<float>(0x7fffffffU),
                                     largest,   -largest,   1e-45f};
  for (const Bf16Kernels* kernels : AllKernels()) {
    for (std::uint32_t seed = 0; seed < 100; ++seed) {
      std::vector<Bf16> narrow(values.size());
      kernels->narrow_by_chance(narrow.data(), values.data(), values.size(), seed, 0);
      if (seed == 0) kernels->narrow(narrow.data(), values.data(), values.size());
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float found = Wide(narrow[i]);
        ExpectEqual(std::isnan(found), std::isnan(values[i]));
        ExpectEqual(std::isinf(found), std::isinf(values[i]));
        if (!std::isnan(found)) ExpectEqual(std::signbit(found), std::signbit(values[i]));
      }
    }
  }
});

const Test kUnbiased("rounding by chance goes to a neighbour and keeps the mean", [] {
  constexpr std::size_t kDraws = 1 << 16;
  for (const Bf16Kernels* kernels : AllKernels()) {
    for (const float value : {0.1f, -0.3f, 1.0019f, 1e-39f, 123456.7f}) {
      const std::vector<float> values(kDraws, value);
      std::vector<Bf16> narrow(kDraws);
      kernels->narrow_by_chance(narrow.data(), values.data(), kDraws, 11, 0);
      const double step = std::abs(value) / 64;  // at least one step of the format
      double sum = 0;
      for (const Bf16 one : narrow) {
        const double found = Wide(one);
        Expect(std::abs(found - value) <= step || std::abs(value) < 1e-38, Show(value));
        sum += found - value;
      }
      // A step is at most 2^-7 of the value (2^-133 for the smallest), the deviation of a mean of
      // 2^16 draws at most 2^-9 of that.
      const double unit = std::max(std::abs(static_cast<double>(value)) / 128, 0x1p-133);
      ExpectNear(sum / kDraws, 0.0, 5 * unit / 512);
    }
  }
});

const Test kSameBits("all instruction sets give the same bits, at any length and position", [] {
  const auto values = RandomFloats(1000);
  for (const std::size_t n : {0, 1, 7, 15, 16, 17, 100, 1000}) {
    std::vector<Bf16> wanted(n);
    std::vector<Bf16> found(n);
    BaselineBf16().narrow(wanted.data(), values.data(), n);
    BestBf16().narrow(found.data(), values.data(), n);
    Expect(found == wanted, "to the nearest");
    BaselineBf16().narrow_by_chance(wanted.data(), values.data(), n, 42, 9);
    // In two parts, as a gradient in parts is.
    const std::size_t half = n / 2;
    BestBf16().narrow_by_chance(found.data(), values.data(), half, 42, 9);
    BestBf16().narrow_by_chance(found.data() + half, values.data() + half, n - half, 42, 9 + half);
    Expect(found == wanted, "by chance");
  }
});

const Test kInPlace("numbers are widened within the memory they arrived in", [] {
  for (const Bf16Kernels* kernels : AllKernels()) {
    for (std::size_t n = 0; n < 100; ++n) {
      std::vector<Bf16> narrow(n);
      for (std::size_t i = 0; i < n; ++i) narrow[i] = static_cast<Bf16>(0x3f80 + i);
      std::vector<float> room(n);
      const auto half = std::as_writable_bytes(std::span(room)).last(n * sizeof(Bf16));
      std::ranges::copy(std::as_bytes(std::span(narrow)), half.begin());
      kernels->widen(room.data(), half.data(), n);
      for (std::size_t i = 0; i < n; ++i) ExpectEqual(room[i], Wide(narrow[i]));
    }
  }
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
