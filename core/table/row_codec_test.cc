#include "table/row_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "optimizer/kernels.h"
#include "table/initializer.h"
#include "table/sparse_table.h"
#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectEqual;
using testing::ExpectNear;
using testing::RequireOk;
using testing::Test;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr RowDtype kSmall[] = {RowDtype::kBf16, RowDtype::kInt8};

std::vector<const CodecKernels*> AllKernels() {
  std::vector<const CodecKernels*> all = {&BaselineCodecKernels()};
#if defined(__x86_64__)
  if (HasAvx2()) all.push_back(&Avx2CodecKernels());
  if (HasAvx512()) all.push_back(&Avx512CodecKernels());
#endif
  return all;
}

std::vector<float> RandomRow(std::size_t n, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0F, 0.1F);
  std::vector<float> row(n);
  for (float& value : row) value = normal(random);
  return row;
}

std::vector<std::byte> Encoded(const RowCodec& codec, const std::vector<float>& row, Key key = 7,
                               std::uint64_t salt = 0) {
  std::vector<std::byte> bytes(codec.bytes(), std::byte{0xff});
  codec.Encode(key, salt, row.data(), bytes.data());
  return bytes;
}

std::vector<float> Decoded(const RowCodec& codec, const std::vector<std::byte>& bytes,
                           std::size_t n) {
  std::vector<float> row(n);
  codec.Decode(bytes.data(), row.data());
  return row;
}

const Test kSizes("a row takes 4, 2 or 1 bytes per value and is aligned to 4", [] {
  ExpectEqual(RowCodec(RowDtype::kFloat32, 64, 0).bytes(), 256U);
  ExpectEqual(RowCodec(RowDtype::kBf16, 64, 0).bytes(), 128U);
  ExpectEqual(RowCodec(RowDtype::kInt8, 64, 0).bytes(), 68U);
  ExpectEqual(RowCodec(RowDtype::kBf16, 3, 0).bytes(), 8U);
  ExpectEqual(RowCodec(RowDtype::kInt8, 1, 0).bytes(), 8U);
});

const Test kSets("all instruction sets give the same bits", [] {
  for (const RowDtype dtype : kSmall) {
    for (std::uint32_t dim = 1; dim < 140; ++dim) {
      auto row = RandomRow(dim, dim);
      if (dim % 7 == 0) row[dim / 2] = dim % 2 == 0 ? kNan : -kInfinity;
      const RowCodec first(dtype, dim, 5, *AllKernels()[0]);
      const auto wanted = Encoded(first, row);
      const auto values = Decoded(first, wanted, dim);
      for (const CodecKernels* kernels : AllKernels()) {
        const RowCodec codec(dtype, dim, 5, *kernels);
        Expect(Encoded(codec, row) == wanted, "encoded differently");
        const auto found = Decoded(codec, wanted, dim);
        Expect(std::memcmp(found.data(), values.data(), dim * sizeof(float)) == 0,
               "decoded differently");
        ExpectEqual(kernels->digest(row.data(), dim), AllKernels()[0]->digest(row.data(), dim));
      }
    }
  }
});

const Test kExact("decoded values are encoded exactly, whatever the salt", [] {
  for (const RowDtype dtype : kSmall) {
    for (std::uint32_t dim = 1; dim <= 65; ++dim) {
      const RowCodec codec(dtype, dim, 5);
      const auto values = Decoded(codec, Encoded(codec, RandomRow(dim, dim)), dim);
      for (const std::uint64_t salt : {0, 1, 2}) {
        ExpectEqual(Decoded(codec, Encoded(codec, values, 8, salt), dim), values);
      }
    }
  }
});

const Test kUnbiased("rounding leaves the mean unchanged and errs by less than one unit", [] {
  constexpr std::uint32_t kDim = 16;
  constexpr int kDraws = 20000;
  const auto row = RandomRow(kDim, 3);
  const float largest =
      std::abs(*std::ranges::max_element(row, {}, [](float value) { return std::abs(value); }));
  for (const RowDtype dtype : kSmall) {
    const RowCodec codec(dtype, kDim, 5);
    std::vector<double> sums(kDim);
    for (int draw = 0; draw < kDraws; ++draw) {
      const auto found = Decoded(codec, Encoded(codec, row, 7, draw), kDim);
      for (std::uint32_t i = 0; i < kDim; ++i) {
        const double unit = dtype == RowDtype::kBf16 ? std::abs(row[i]) / 128 : largest / 63.5;
        Expect(std::abs(found[i] - row[i]) < unit, "further away than the next value");
        sums[i] += (found[i] - row[i]) / unit;
      }
    }
    // The deviation of a mean of this many draws is at most 0.5 / sqrt(draws) units.
    for (const double sum : sums) ExpectNear(sum / kDraws, 0.0, 5 * 0.5 / std::sqrt(kDraws));
  }
});

const Test kExtremes("extreme values stay what they are", [] {
  const float most = std::numeric_limits<float>::max();
  const RowCodec half(RowDtype::kBf16, 4, 0);
  const auto found = Decoded(half, Encoded(half, {most, -kInfinity, kNan, 0.0F}), 4);
  Expect(std::isfinite(found[0]) && found[0] > 0.99F * most, "the largest float overflows");
  ExpectEqual(found[1], -kInfinity);
  Expect(std::isnan(found[2]), "a NaN is lost");
  ExpectEqual(found[3], 0.0F);

  const RowCodec small(RowDtype::kInt8, 2, 0);
  for (const float bad : {kNan, kInfinity}) {
    Expect(std::isnan(Decoded(small, Encoded(small, {1.0F, bad}), 2)[0]), "hides a bad value");
  }
  ExpectEqual(Decoded(small, Encoded(small, {0.0F, 0.0F}), 2), std::vector<float>(2, 0.0F));
  ExpectEqual(Decoded(small, Encoded(small, {1e-40F, 0.0F}), 2), std::vector<float>(2, 0.0F));
  ExpectEqual(Decoded(small, Encoded(small, {127.0F, -1.0F}), 2), std::vector<float>({127, -1}));
  const auto high = Decoded(small, Encoded(small, {3e38F, -3e38F}), 2);
  Expect(std::abs(high[0] / 3e38F - 1) < 0.01F && high[1] < 0, "large floats change");
  Expect(std::isnan(Decoded(small, Encoded(small, {most, 0.0F}), 2)[0]), "too large to hold");
});

const Test kFormat("encoded bytes never change: logs are replayed", [] {
  const std::vector<float> row = {0.1F, -0.2F, 0.3F};
  std::uint64_t hash = 0;
  for (const RowDtype dtype : kSmall) {
    const RowCodec codec(dtype, 3, 7);
    for (const std::byte byte : Encoded(codec, row, 123, codec.Salt(row.data(), 0.5F))) {
      hash = Mix64(hash ^ static_cast<std::uint64_t>(byte));
    }
  }
  ExpectEqual(hash, std::uint64_t{6330918368671385477U});
});

SparseSpec SpecOf(RowDtype dtype, OptimizerKind kind = OptimizerKind::kSgd) {
  SparseSpec spec;
  spec.name = "ads";
  spec.dim = 5;
  spec.seed = 11;
  spec.initializer = {InitializerKind::kNormal, 0.0, 0.1};
  spec.optimizer.kind = kind;
  spec.optimizer.learning_rate = 0.01;
  spec.optimizer.initial_accumulator = 0.1;
  spec.row_dtype = dtype;
  return spec;
}

std::vector<float> PullRows(SparseTable& table, const std::vector<Key>& keys,
                            PullMode mode = PullMode::kTrain) {
  std::vector<float> out(keys.size() * table.dim(), kNan);
  RequireOk(table.Pull(keys, mode, 0, out));
  return out;
}

RowBatch AllRows(SparseTable& table) {
  RowBatch all;
  RowBatch some;
  for (TableCut cut = table.OpenCut(); cut.Next(1000, some);) {
    all.keys.insert(all.keys.end(), some.keys.begin(), some.keys.end());
    all.values.insert(all.values.end(), some.values.begin(), some.values.end());
    all.state.insert(all.state.end(), some.state.begin(), some.state.end());
  }
  return all;
}

void PushSteps(SparseTable& table, const std::vector<Key>& keys, int first, int last) {
  for (int step = first; step < last; ++step) {
    const auto gradients = RandomRow(keys.size() * table.dim(), 100 + step);
    RequireOk(table.Push(keys, gradients, step));
  }
}

const Test kInitial("a row starts at its initial value, encoded, whoever asks", [] {
  for (const RowDtype dtype : kSmall) {
    const SparseSpec spec = SpecOf(dtype);
    std::vector<float> wanted(spec.dim);
    Initializer(spec.initializer, spec.seed).Fill(9, wanted);
    RowCodec(dtype, spec.dim, spec.seed).Round(9, wanted.data());
    auto table = RequireOk(SparseTable::Create(spec));
    ExpectEqual(PullRows(*table, {9}, PullMode::kInferInitial), wanted);
    ExpectEqual(table->Stats().rows, 0U);
    ExpectEqual(PullRows(*table, {9}), wanted);
    ExpectEqual(PullRows(*table, {9}, PullMode::kInferZeros), wanted);
  }
});

const Test kOptimizers("every optimizer follows its float32 rows within the precision", [] {
  const std::vector<Key> keys = {1, 2, 3, 1ULL << 60};
  for (unsigned kind = 0; kind <= static_cast<unsigned>(kLastOptimizer); ++kind) {
    const auto one = static_cast<OptimizerKind>(kind);
    if (NeedsNorms(one)) continue;
    auto exact = RequireOk(SparseTable::Create(SpecOf(RowDtype::kFloat32, one)));
    PushSteps(*exact, keys, 0, 20);
    for (const RowDtype dtype : kSmall) {
      auto table = RequireOk(SparseTable::Create(SpecOf(dtype, one)));
      PushSteps(*table, keys, 0, 20);
      const auto found = PullRows(*table, keys);
      const auto wanted = PullRows(*exact, keys);
      const double tolerance = dtype == RowDtype::kBf16 ? 0.05 : 0.3;
      for (std::size_t i = 0; i < found.size(); ++i) {
        if (!ExpectNear(found[i], wanted[i], tolerance * (0.2 + std::abs(wanted[i])))) {
          Expect(false, "optimizer " + std::to_string(kind));
        }
      }
      ExpectEqual(AllRows(*table).state.size(), AllRows(*exact).state.size());
    }
  }
});

const Test kSmallSteps("steps far below the precision add up", [] {
  for (const RowDtype dtype : kSmall) {
    SparseSpec spec = SpecOf(dtype);
    spec.dim = 64;
    spec.initializer = {InitializerKind::kConstant, 1.0, 0.0};
    spec.optimizer.learning_rate = 1.0;
    auto table = RequireOk(SparseTable::Create(spec));
    std::mt19937_64 random(1);
    std::uniform_real_distribution<float> uniform(0.0F, 2e-4F);
    std::vector<float> gradients(64);
    for (int step = 0; step < 4000; ++step) {
      for (float& value : gradients) value = uniform(random);
      RequireOk(table->Push(std::vector<Key>{5}, gradients, 0));
    }
    double mean = 0;
    for (const float value : PullRows(*table, {5})) mean += value / 64;
    ExpectNear(mean, 0.6, 0.04);  // 4000 steps of 1e-4; rounding to nearest would stay at 1
  }
});

const Test kSameBits("records, rows and repeated pushes give the same bits", [] {
  std::vector<Key> keys;
  for (Key key = 0; key < 200; ++key) keys.push_back(key * 977);
  for (const RowDtype dtype : kSmall) {
    const SparseSpec spec = SpecOf(dtype, OptimizerKind::kRowwiseAdagrad);
    auto whole = RequireOk(SparseTable::Create(spec));
    PushSteps(*whole, keys, 0, 6);
    auto half = RequireOk(SparseTable::Create(spec));
    PushSteps(*half, keys, 0, 3);

    auto from_records = RequireOk(SparseTable::Create(spec));
    std::vector<std::byte> records;
    for (TableCut cut = half->OpenCut(); cut.NextRecords(64, records);) {
      RequireOk(from_records->RestoreRecords(records));
    }
    for (std::size_t part = 0; part < SparseTable::kRestoredParts; ++part) {
      RequireOk(from_records->IndexRestored(part));
    }
    auto from_rows = RequireOk(SparseTable::Create(spec));
    RequireOk(from_rows->Import(AllRows(*half)));
    for (auto& table : {from_records, from_rows}) {
      PushSteps(*table, keys, 3, 6);
      ExpectEqual(PullRows(*table, keys), PullRows(*whole, keys));
    }
  }
});

const Test kShrinks("the norm that eviction compares is that of the decoded row", [] {
  for (const RowDtype dtype : kSmall) {
    SparseSpec spec = SpecOf(dtype);
    spec.eviction.min_norm = 0.5;
    auto table = RequireOk(SparseTable::Create(spec));
    RowBatch rows;
    rows.keys = {1, 2};
    rows.values = {1, 0, 0, 0, 0, 0.1F, 0, 0, 0, 0};
    RequireOk(table->Import(rows));
    ExpectEqual(table->Shrink(1), 1U);
    ExpectEqual(AllRows(*table).keys, std::vector<Key>{1});
  }
});

const Test kMemory("rows of 64 values take about half and a third of the memory", [] {
  std::vector<Key> keys(20000);
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  double bytes[3] = {};
  for (const RowDtype dtype : {RowDtype::kFloat32, RowDtype::kBf16, RowDtype::kInt8}) {
    SparseSpec spec = SpecOf(dtype, OptimizerKind::kRowwiseAdagrad);
    spec.dim = 64;
    auto table = RequireOk(SparseTable::Create(spec));
    PullRows(*table, keys);
    bytes[static_cast<int>(dtype)] = static_cast<double>(table->Stats().payload_bytes) / 20000;
  }
  ExpectEqual(bytes[0], 268.0);
  ExpectEqual(bytes[1], 140.0);
  ExpectEqual(bytes[2], 80.0);
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
