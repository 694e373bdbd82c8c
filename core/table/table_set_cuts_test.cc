// All tables as of one moment, and dense tables as a whole.
#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "table/table_set.h"
#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectCode;
using testing::ExpectEqual;
using testing::RequireOk;
using testing::Test;

constexpr std::uint64_t kElements = 40000;  // of several stripes

SparseSpec Sparse(const std::string& name, bool track_dirty = true) {
  SparseSpec spec;
  spec.name = name;
  spec.dim = 1;
  spec.optimizer.learning_rate = 1.0;
  spec.track_dirty = track_dirty;
  return spec;
}

DenseSpec Dense(OptimizerKind kind = OptimizerKind::kSgd) {
  DenseSpec spec;
  spec.name = "net";
  spec.size = kElements;
  spec.optimizer.kind = kind;
  spec.optimizer.learning_rate = 1.0;
  spec.min_block_size = 1;
  return spec;
}

// One more to a row of each sparse table and to all elements of the dense one.
void PushOne(TableSet& tables, Key key) {
  static const std::vector<float> minus(kElements, -1.0F);
  const std::vector<Key> keys = {key};
  const auto one = std::span(minus).first(1);
  const PushSection sections[] = {{"ads", keys, one, false, true, false},
                                  {"net", {}, minus, true, false, false},
                                  {"sites", keys, one, false, true, false}};
  RequireOk(tables.Push(sections, 0).status());
}

std::map<Key, float> ReadAll(AnyCut& any) {
  auto& cut = std::get<TableCut>(any);
  std::map<Key, float> rows;
  RowBatch batch;
  while (cut.Next(100, batch)) {
    for (std::size_t i = 0; i < batch.keys.size(); ++i) rows[batch.keys[i]] = batch.values[i];
  }
  cut.Commit();
  return rows;
}

const Test kMoment("cuts of all tables show no push in part while threads push", [] {
  TableSet tables;
  RequireOk(tables.Define(Sparse("ads")));
  RequireOk(tables.Define(Sparse("sites")));
  RequireOk(tables.Define(Dense()));
  std::atomic<bool> stop = false;
  std::vector<std::jthread> threads;
  for (Key writer = 0; writer < 3; ++writer) {
    threads.emplace_back([&, writer] {
      for (Key n = 0; !stop; ++n) PushOne(tables, writer * 1000 + n % 50);
    });
  }
  for (int round = 0; round < 40; ++round) {
    auto cuts = RequireOk(tables.OpenCuts(false, false));
    ExpectEqual(cuts.size(), 3U);
    const auto ads = ReadAll(cuts.at("ads"));
    Expect(ads == ReadAll(cuts.at("sites")), "a push shows in only one sparse table");
    float pushes = 0;
    for (const auto& [key, value] : ads) pushes += value;
    const auto& dense = std::get<DenseCut>(cuts.at("net"));
    ExpectEqual(dense.values.size(), kElements);
    for (const float value : dense.values) {
      if (!ExpectEqual(value, pushes)) return;
    }
  }
  stop = true;
});

const Test kDirty("cuts of dirty rows clear when they are read, table by table", [] {
  TableSet tables;
  RequireOk(tables.Define(Sparse("ads")));
  RequireOk(tables.Define(Sparse("sites")));
  RequireOk(tables.Define(Dense()));
  PushOne(tables, 1);
  PushOne(tables, 2);
  auto first = RequireOk(tables.OpenCuts(true, true));
  ExpectEqual(ReadAll(first.at("ads")).size(), 2U);
  PushOne(tables, 3);
  RequireOk(tables.Sparse("ads"))->Erase(std::vector<Key>{1});
  auto second = RequireOk(tables.OpenCuts(true, true));
  Expect(ReadAll(second.at("ads")) == std::map<Key, float>({{3, 1.0F}}), "wrong rows");
  ExpectEqual(std::get<TableCut>(second.at("ads")).Removed(), std::vector<Key>({1}));
  ExpectEqual(ReadAll(second.at("sites")).size(), 3U);  // the first cut of it was not read
  RequireOk(tables.Define(Sparse("plain", false)));
  ExpectCode(tables.OpenCuts(true, true).status(), Code::kInvalidArgument);
  RequireOk(tables.OpenCuts(false, true).status());
  const auto named =
      RequireOk(tables.OpenCuts(true, true, std::vector<std::string>{"sites", "net"}));
  ExpectEqual(named.size(), 2U);
  ExpectCode(tables.OpenCuts(true, true, std::vector<std::string>{"none"}).status(),
             Code::kUnknownTable);
});

const Test kWrites("a cut never shows a partial write of a dense table", [] {
  TableSet tables;
  RequireOk(tables.Define(Dense()));
  std::atomic<bool> stop = false;
  std::jthread writer([&] {
    for (float n = 0; !stop; n += 1) {
      const std::vector<float> values(kElements, n);
      RequireOk(tables.WriteDense("net", values));
      RequireOk(tables.WriteDensePart("net", 0, values, std::nullopt));
    }
  });
  for (int round = 0; round < 200; ++round) {
    const DenseCut part = RequireOk(tables.ReadDensePart("net"));
    if (!Expect(part.values.front() == part.values.back(), "a write is shown in part")) break;
  }
  stop = true;
});

const Test kParts("parts move with their state from one partition to another", [] {
  const DenseSpec spec = Dense(OptimizerKind::kAdam);
  const std::vector<float> gradient(kElements, 0.5F);
  TableSet whole;
  RequireOk(whole.Define(spec));
  const PushSection push{"net", {}, gradient, true, false, false};
  for (int i = 0; i < 3; ++i) RequireOk(whole.Push({&push, 1}, 0).status());
  const DenseCut saved = RequireOk(whole.ReadDensePart("net"));
  ExpectEqual(saved.begin, 0U);
  ExpectEqual(saved.state.size(), 3 * kElements);
  RequireOk(whole.Push({&push, 1}, 0).status());
  const DenseCut wanted = RequireOk(whole.ReadDensePart("net"));
  for (std::uint32_t index = 0; index < 3; ++index) {
    TableSet part;
    RequireOk(part.Define(spec, index, 3));
    const DenseRange range = DenseRangeOf("net", kElements, 1, index, 3);
    std::vector<float> state;
    for (std::size_t array = 0; array < 3; ++array) {
      const auto* first = saved.state.data() + array * kElements;
      state.insert(state.end(), first + range.begin, first + range.end);
    }
    const auto values = std::span(saved.values).subspan(range.begin, range.size());
    RequireOk(part.WriteDensePart("net", range.begin, values, state));
    const auto its_gradient = std::span<const float>(gradient).first(range.size());
    const PushSection its_push{"net", {}, its_gradient, true, false, false};
    RequireOk(part.Push({&its_push, 1}, 0).status());
    const DenseCut found = RequireOk(part.ReadDensePart("net"));
    ExpectEqual(found.begin, range.begin);
    Expect(std::ranges::equal(found.values,
                              std::span(wanted.values).subspan(range.begin, range.size())),
           "the next step differs");
    ExpectCode(part.WriteDensePart("net", range.begin + 1, values, state), Code::kShapeMismatch);
    ExpectCode(part.WriteDensePart("net", range.begin, values, std::span(state).first(5)),
               Code::kShapeMismatch);
  }
  ExpectCode(whole.ReadDensePart("none").status(), Code::kUnknownTable);
  ExpectCode(whole.WriteDensePart("none", 0, {}, std::nullopt), Code::kUnknownTable);
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
