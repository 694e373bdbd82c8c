#include "table/dense_table.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "optimizer/row_optimizer.h"
#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectCode;
using testing::ExpectEqual;
using testing::ExpectNear;
using testing::RequireOk;
using testing::Test;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

DenseSpec Spec(std::uint64_t size, OptimizerKind kind = OptimizerKind::kSgd) {
  DenseSpec spec;
  spec.name = "weights";
  spec.size = size;
  spec.optimizer.kind = kind;
  spec.optimizer.learning_rate = 1.0;
  spec.min_block_size = NeedsNorms(kind) ? size : spec.min_block_size;
  return spec;
}

std::vector<float> ReadAll(const DenseTable& table) {
  std::vector<float> values(table.size());
  RequireOk(table.Read(0, values));
  return values;
}

const Test kRanges("dense ranges are nearly equal parts of at least one block", [] {
  ExpectEqual(DenseRangeOf("t", 10, 1, 0, 3), DenseRange{0, 4});
  ExpectEqual(DenseRangeOf("t", 10, 1, 1, 3), DenseRange{4, 7});
  ExpectEqual(DenseRangeOf("t", 10, 1, 2, 3), DenseRange{7, 10});
  for (const std::uint64_t size : {1ULL, 7ULL, 350ULL, 8192ULL, 100001ULL}) {
    std::vector<DenseRange> ranges;
    for (std::uint32_t index = 0; index < 5; ++index) {
      const DenseRange range = DenseRangeOf("t", size, 100, index, 5);
      if (range.size() > 0) ranges.push_back(range);
    }
    ExpectEqual(ranges.size(), std::clamp<std::size_t>(size / 100, 1, 5));
    std::ranges::sort(ranges, {}, &DenseRange::begin);
    std::uint64_t next = 0;
    for (const DenseRange& range : ranges) {
      Expect(range.begin == next, "ranges leave a gap");
      next = range.end;
    }
    ExpectEqual(next, size);
  }
});

const Test kSpread("small dense tables are spread over the servers by their names", [] {
  std::map<std::uint32_t, int> held;
  for (int number = 0; number < 200; ++number) {
    for (std::uint32_t index = 0; index < 4; ++index) {
      const std::string name = "parameter_" + std::to_string(number);
      if (DenseRangeOf(name, 10, 100, index, 4).size() > 0) ++held[index];
    }
  }
  ExpectEqual(held.size(), 4U);
  for (const auto& [index, count] : held) Expect(count > 30, "a server holds too few tables");
});

const Test kParts("a gradient in parts has the same effect as a contiguous one", [] {
  for (const auto kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kLamb}) {
    auto whole = RequireOk(DenseTable::Create(Spec(50000, kind)));
    auto cut = RequireOk(DenseTable::Create(Spec(50000, kind)));
    std::vector<float> gradient(50000);
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = 0.001F * (i % 977);
    const std::span<const float> all(gradient);
    const std::vector<std::span<const float>> parts = {all.subspan(0, 3), all.subspan(3, 0),
                                                       all.subspan(3, 40000), all.subspan(40003)};
    for (int step = 0; step < 3; ++step) {
      RequireOk(whole->Push(gradient));
      ExpectEqual(RequireOk(cut->Push(parts)).applied, 50000U);
    }
    ExpectEqual(ReadAll(*cut), ReadAll(*whole));
  }
});

const Test kBadParts("parts of the wrong length or with NaN are rejected and change nothing", [] {
  auto table = RequireOk(DenseTable::Create(Spec(4)));
  const std::vector<float> first = {1, 2};
  const std::vector<float> bad = {3, kNan};
  const std::vector<std::span<const float>> short_parts = {first};
  ExpectCode(table->Push(short_parts).status(), Code::kShapeMismatch);
  const std::vector<std::span<const float>> bad_parts = {first, bad};
  ExpectCode(table->Push(bad_parts).status(), Code::kNonFinite);
  ExpectEqual(ReadAll(*table), std::vector<float>(4, 0.0F));
});

const Test kLive("live values are those that pushes change and reads return", [] {
  auto table = RequireOk(DenseTable::Create(Spec(3)));
  table->LiveValues()[1] = 5.0F;
  RequireOk(table->Push(std::vector<float>{1, 1, 1}));
  ExpectEqual(ReadAll(*table), std::vector<float>{-1, 4, -1});
  ExpectEqual(table->LiveValues()[1], 4.0F);
});

const Test kStripes("a push reaches every element across stripes", [] {
  auto table = RequireOk(DenseTable::Create(Spec(40000)));
  std::vector<float> gradient(40000);
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>(i);
  ExpectEqual(RequireOk(table->Push(gradient)).applied, 40000U);
  std::vector<float> middle(20000);
  RequireOk(table->Read(10000, middle));
  for (std::size_t i = 0; i < middle.size(); ++i) {
    if (!ExpectEqual(middle[i], -static_cast<float>(10000 + i))) break;
  }
  RequireOk(table->Write(16380, std::vector<float>(10, 5.0F)));
  RequireOk(table->Add(gradient).status());
  const auto values = ReadAll(*table);
  ExpectEqual(values[16379], 0.0F);
  ExpectEqual(values[16380], 16385.0F);
  ExpectEqual(values[16390], 0.0F);
});

const Test kShapes("spans outside the table are rejected", [] {
  auto table = RequireOk(DenseTable::Create(Spec(10)));
  std::vector<float> some(4);
  ExpectCode(table->Read(7, some), Code::kShapeMismatch);
  ExpectCode(table->Read(~std::uint64_t{0}, some), Code::kShapeMismatch);
  ExpectCode(table->Write(11, {}), Code::kShapeMismatch);
  ExpectCode(table->Push(some).status(), Code::kShapeMismatch);
  ExpectCode(table->WriteState(some), Code::kShapeMismatch);
  RequireOk(table->Read(6, some));
  ExpectCode(DenseTable::Create(Spec(0)).status(), Code::kInvalidArgument);
  ExpectCode(DenseTable::Create(Spec(10, OptimizerKind::kRowwiseAdagrad)).status(),
             Code::kInvalidArgument);
});

const Test kEmptyPart("a part without elements takes empty pushes", [] {
  auto table = RequireOk(DenseTable::Create(Spec(10, OptimizerKind::kAdam), {10, 10}));
  ExpectEqual(table->size(), 0U);
  ExpectEqual(table->spec().size, 10U);
  ExpectEqual(RequireOk(table->Push(DenseParts())).applied, 0U);
  RequireOk(table->Read(0, {}));
  RequireOk(table->ReadState({}));
});

const Test kNonFinite("a non-finite gradient raises, or is skipped and counted", [] {
  auto raising = RequireOk(DenseTable::Create(Spec(20000)));
  std::vector<float> gradient(20000, 1.0F);
  gradient[17000] = kNan;
  const Status status = raising->Push(gradient).status();
  ExpectCode(status, Code::kNonFinite);
  Expect(status.message().find("element 17000 is nan") != std::string::npos, status.message());
  DenseSpec spec = Spec(20000);
  spec.non_finite = NonFinitePolicy::kRejectRow;
  auto skipping = RequireOk(DenseTable::Create(spec));
  ExpectEqual(RequireOk(skipping->Push(gradient)), PushResult{.rejected_non_finite = 1});
  ExpectEqual(ReadAll(*raising), std::vector<float>(20000, 0.0F));
  ExpectEqual(ReadAll(*skipping), std::vector<float>(20000, 0.0F));
});

const Test kState("training continues unchanged after state is read and written back", [] {
  for (const auto kind :
       {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kAdam, OptimizerKind::kAdamax,
        OptimizerKind::kRmsprop, OptimizerKind::kFtrl, OptimizerKind::kAdadelta,
        OptimizerKind::kFluidAdadelta, OptimizerKind::kFluidRmsprop, OptimizerKind::kLars,
        OptimizerKind::kLamb}) {
    DenseSpec spec = Spec(20000, kind);
    spec.optimizer.momentum = 0.9;
    spec.optimizer.learning_rate = 0.01;
    spec.optimizer.l2 = 0.001;
    auto one = RequireOk(DenseTable::Create(spec));
    auto other = RequireOk(DenseTable::Create(spec));
    std::vector<float> gradient(20000);
    for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = 0.01F * float(i % 100) - 0.3F;
    for (int i = 0; i < 3; ++i) RequireOk(one->Push(gradient).status());
    RequireOk(other->Push(gradient).status());
    std::vector<float> state(one->size() * one->state_dim());
    RequireOk(one->ReadState(state));
    RequireOk(other->WriteState(state));
    RequireOk(other->Write(0, ReadAll(*one)));
    std::vector<float> again(state.size());
    RequireOk(other->ReadState(again));
    Expect(again == state, "state changed in transit");
    RequireOk(one->Push(gradient).status());
    RequireOk(other->Push(gradient).status());
    Expect(ReadAll(*one) == ReadAll(*other), "tables diverged");
  }
});

const Test kNormsOfStripes("lars and lamb scale by the norms of the whole table", [] {
  for (const auto kind : {OptimizerKind::kLars, OptimizerKind::kLamb}) {
    DenseSpec spec = Spec(40000, kind);  // three stripes
    spec.optimizer.momentum = 0.9;
    spec.optimizer.l2 = 0.01;
    auto table = RequireOk(DenseTable::Create(spec));
    std::vector<float> w(40000);
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = 1e-4F * float(i) - 1.0F;
    RequireOk(table->Write(0, w));
    const RowOptimizer optimizer(spec.optimizer);
    std::vector<float> state(optimizer.StateDim(w.size()));
    optimizer.InitState(state.data(), w.size());
    std::vector<float> gradient(40000);
    for (int step = 1; step < 5; ++step) {
      for (std::size_t i = 0; i < w.size(); ++i) gradient[i] = 1e-3F * float(i * step % 77) - 0.02F;
      RequireOk(table->Push(gradient).status());
      optimizer.Update(w.data(), state.data(), gradient.data(), w.size(), 1.0, nullptr);
    }
    const auto found = ReadAll(*table);
    for (std::size_t i = 0; i < w.size(); ++i) ExpectNear(found[i], w[i], 1e-6);
  }
});

const Test kHalvesApart("no reader of state comes between the halves of a lamb step", [] {
  DenseSpec spec = Spec(20000, OptimizerKind::kLamb);
  spec.optimizer.learning_rate = 0.0;  // moments change, values must not be seen to lag behind
  auto table = RequireOk(DenseTable::Create(spec));
  std::atomic<bool> done = false;
  std::thread pushing([&] {
    const std::vector<float> gradient(20000, 1.0F);
    for (int i = 0; i < 200; ++i) RequireOk(table->Push(gradient).status());
    done = true;
  });
  std::vector<float> values(20000);
  std::vector<float> state(20000 * table->state_dim());
  while (!done) {
    RequireOk(table->ReadWithState(0, values, state));
    ExpectEqual(state.front(), state[19999]);  // the moments of both stripes are of one step
  }
  pushing.join();
});

const Test kPartsEqualWhole("parts of a table train like the whole", [] {
  const DenseSpec spec = Spec(50000, OptimizerKind::kAdam);
  auto whole = RequireOk(DenseTable::Create(spec));
  auto left = RequireOk(DenseTable::Create(spec, {0, 12345}));
  auto right = RequireOk(DenseTable::Create(spec, {12345, 50000}));
  std::vector<float> gradient(50000);
  for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] = 1e-3F * float(i % 77) - 0.02F;
  const std::span<const float> all(gradient);
  for (int i = 0; i < 5; ++i) {
    RequireOk(whole->Push(all).status());
    RequireOk(left->Push(all.first(12345)).status());
    RequireOk(right->Push(all.subspan(12345)).status());
  }
  auto parts = ReadAll(*left);
  const auto rest = ReadAll(*right);
  parts.insert(parts.end(), rest.begin(), rest.end());
  Expect(parts == ReadAll(*whole), "parts differ from the whole");
});

const Test kNoTear("a stripe is read and written as a whole", [] {
  auto table = RequireOk(DenseTable::Create(Spec(16384)));
  std::atomic<bool> stop = false;
  {
    std::vector<std::jthread> threads;
    for (int writer = 0; writer < 2; ++writer) {
      threads.emplace_back([&] {
        const std::vector<float> ones(16384, 1.0F);
        for (int i = 0; i < 300; ++i) RequireOk(table->Push(ones).status());
        stop = true;
      });
    }
    threads.emplace_back([&] {
      while (!stop) {
        const auto values = ReadAll(*table);
        if (!Expect(values == std::vector<float>(values.size(), values[0]), "torn")) return;
      }
    });
  }
  ExpectEqual(ReadAll(*table)[100], -600.0F);
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
