#include "table/table_set.h"

#include <limits>

#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectCode;
using testing::ExpectEqual;
using testing::RequireOk;
using testing::Test;

SparseSpec Ads() {
  SparseSpec spec;
  spec.name = "ads";
  spec.dim = 2;
  spec.optimizer.learning_rate = 1.0;
  return spec;
}

DenseSpec Weights() {
  DenseSpec spec;
  spec.name = "weights";
  spec.size = 4;
  spec.optimizer.learning_rate = 1.0;
  spec.min_block_size = 1;
  return spec;
}

// Filled in place: a set of tables does not move.
void DefineBoth(TableSet& tables) {
  RequireOk(tables.Define(Ads()));
  RequireOk(tables.Define(Weights()));
}

const Test kDefine("a table is defined once; another spec under its name is a conflict", [] {
  TableSet tables;
  DefineBoth(tables);
  DefineBoth(tables);
  SparseSpec other = Ads();
  other.optimizer.learning_rate = 5;
  RequireOk(tables.Define(other));
  other.dim = 3;
  const Status status = tables.Define(other);
  ExpectCode(status, Code::kTableConflict);
  ExpectEqual(status.message(), "table 'ads': already defined; its dim is 2, expected 3");
  DenseSpec dense = Weights();
  ExpectCode(tables.Define(dense, 1, 2), Code::kTableConflict);
  ExpectCode(tables.Define(dense, 2, 2), Code::kInvalidArgument);
  dense.size = 5;
  ExpectCode(tables.Define(dense), Code::kTableConflict);
  dense.name = "ads";
  ExpectCode(tables.Define(dense), Code::kTableConflict);
  other.name = "weights";
  ExpectCode(tables.Define(other), Code::kTableConflict);
  ExpectEqual(tables.Names(), std::vector<std::string>({"ads", "weights"}));
});

const Test kUnknown("the error for an unknown table lists the existing ones", [] {
  TableSet tables;
  ExpectEqual(tables.Sparse("ads").status().message(), "no table 'ads'; no table is defined");
  DefineBoth(tables);
  const Status status = tables.Sparse("adz").status();
  ExpectCode(status, Code::kUnknownTable);
  ExpectEqual(status.message(), "no table 'adz'; known tables: 'ads', 'weights'");
  ExpectCode(tables.Sparse("weights").status(), Code::kInvalidArgument);
  ExpectCode(tables.Dense("ads").status(), Code::kInvalidArgument);
  ExpectCode(tables.SetLearningRate("adz", 1), Code::kUnknownTable);
  ExpectCode(tables.Version("adz").status(), Code::kUnknownTable);
});

const Test kPushPull("one push and one pull reach both sparse and dense tables", [] {
  TableSet tables;
  DefineBoth(tables);
  const std::vector<Key> keys = {5, 6};
  const std::vector<float> rows = {1, 2, 3, 4};
  const std::vector<float> gradient = {1, 1, 2, 2};
  const PushSection push[] = {
      {.table = "ads", .keys = keys, .gradients = rows},
      {.table = "weights", .keys = {}, .gradients = gradient, .dense = true}};
  const PushResult result = RequireOk(tables.Push(push, 1));
  ExpectEqual(result.applied, 6U);
  std::vector<float> out_rows(4);
  std::vector<float> out_dense(2);
  const PullSection pull[] = {
      {.table = "ads", .keys = keys, .out = out_rows},
      {.table = "weights", .keys = {}, .out = out_dense, .dense = true, .offset = 1}};
  RequireOk(tables.Pull(pull, PullMode::kTrain, 1));
  ExpectEqual(out_rows, std::vector<float>({-1, -2, -3, -4}));
  ExpectEqual(out_dense, std::vector<float>({-1, -2}));
  ExpectEqual(RequireOk(tables.Version("ads")), 1U);
  ExpectEqual(RequireOk(tables.Version("weights")), 1U);
  RequireOk(tables.SetLearningRate("ads", 0.5));
  const PushSection add[] = {{.table = "ads", .keys = keys, .gradients = rows, .add = true}};
  RequireOk(tables.Push(add, 2));
  RequireOk(tables.Pull(std::span(pull).first(1), PullMode::kTrain, 1));
  ExpectEqual(out_rows, std::vector<float>(4, 0.0F));
});

const Test kRateTimes("a late rate is ignored, until one without a count starts over", [] {
  TableSet tables;
  DefineBoth(tables);
  const auto rate = [&] { return RequireOk(tables.Sparse("ads"))->learning_rate(); };
  RequireOk(tables.SetLearningRate("ads", 0.5, 10));
  RequireOk(tables.SetLearningRate("ads", 0.25, 9));
  ExpectEqual(rate(), 0.5);
  ExpectCode(tables.SetLearningRate("ads", -1, 20), Code::kInvalidArgument);
  RequireOk(tables.SetLearningRate("ads", 0.125, 10));
  ExpectEqual(rate(), 0.125);
  RequireOk(tables.SetLearningRate("ads", 1));
  RequireOk(tables.SetLearningRate("ads", 0.75, 0));
  ExpectEqual(rate(), 0.75);
});

const Test kAllOrNothing("a push or pull with one bad section does nothing", [] {
  TableSet tables;
  DefineBoth(tables);
  const std::vector<Key> keys = {5};
  const std::vector<float> row = {1, 2};
  const std::vector<float> bad = {1, 1, std::numeric_limits<float>::quiet_NaN(), 1};
  const std::vector<float> good(4, 1.0F);
  const PushSection first{.table = "ads", .keys = keys, .gradients = row};
  const auto refused = [&](PushSection second, Code code) {
    const PushSection sections[] = {first, second};
    ExpectCode(tables.Push(sections, 0).status(), code);
  };
  refused({.table = "weights", .keys = {}, .gradients = bad, .dense = true}, Code::kNonFinite);
  refused({.table = "weights", .keys = {}, .gradients = row, .dense = true}, Code::kShapeMismatch);
  const std::span<const float> bad_parts[] = {std::span(bad).first(2), std::span(bad).last(2)};
  refused({.table = "weights", .keys = {}, .gradients = {}, .dense = true, .parts = bad_parts},
          Code::kNonFinite);
  refused({.table = "weights", .keys = keys, .gradients = row}, Code::kInvalidArgument);
  refused({.table = "none", .keys = keys, .gradients = row}, Code::kUnknownTable);
  refused(first, Code::kInvalidArgument);
  const PushSection cut[] = {{.table = "ads", .keys = keys, .gradients = {}, .parts = bad_parts}};
  ExpectCode(tables.Push(cut, 0).status(), Code::kShapeMismatch);
  std::vector<float> out(2);
  std::vector<float> wrong(5);
  const PullSection pull[] = {
      {.table = "ads", .keys = keys, .out = out},
      {.table = "weights", .keys = {}, .out = wrong, .dense = true, .offset = 0}};
  ExpectCode(tables.Pull(pull, PullMode::kTrain, 0), Code::kShapeMismatch);
  ExpectEqual(RequireOk(tables.Sparse("ads"))->Stats().rows, 0U);
  ExpectEqual(RequireOk(tables.Version("ads")), 0U);
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
