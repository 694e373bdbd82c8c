#include "table/table_spec.h"

#include <functional>
#include <limits>
#include <string>

#include "testing/check.h"

namespace sparsefleet {
namespace {

using testing::Expect;
using testing::ExpectCode;
using testing::ExpectEqual;
using testing::RequireOk;
using testing::Test;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

SparseSpec GoodSpec(OptimizerKind kind = OptimizerKind::kSgd) {
  SparseSpec spec;
  spec.name = "ads";
  spec.dim = 8;
  spec.optimizer.kind = kind;
  return spec;
}

void ExpectRefused(SparseSpec spec, const std::string& field) {
  const Status status = spec.Validate();
  ExpectCode(status, Code::kInvalidArgument);
  Expect(status.message().find(field + " must be ") != std::string::npos,
         "expected " + field + ", message is: " + status.message());
}

const Test kDefaults("the defaults of every optimizer are legal", [] {
  for (unsigned kind = 0; kind <= static_cast<unsigned>(kLastOptimizer); ++kind) {
    const auto one = static_cast<OptimizerKind>(kind);
    if (!NeedsNorms(one)) RequireOk(GoodSpec(one).Validate());
  }
});

const Test kNorms("lars and lamb are for dense tables that one server holds", [] {
  for (const auto kind : {OptimizerKind::kLars, OptimizerKind::kLamb}) {
    ExpectRefused(GoodSpec(kind), "optimizer.kind");
    DenseSpec dense;
    dense.name = "weights";
    dense.size = 10000;
    dense.optimizer.kind = kind;
    dense.min_block_size = 10000;
    RequireOk(dense.Validate());
    dense.min_block_size = 9999;
    Expect(dense.Validate().message().find("min_block_size must be >= size") != std::string::npos,
           "a table cut into parts is accepted");
  }
});

const Test kNames("table names are UTF-8 without control characters, 1 to 255 bytes", [] {
  SparseSpec spec = GoodSpec();
  for (const std::string good : {"a", "a b/c", "caf\xc3\xa9", "\xf0\x9f\x98\x80"}) {
    spec.name = good;
    RequireOk(spec.Validate());
  }
  spec.name = std::string(255, 'x');
  RequireOk(spec.Validate());
  for (const std::string& bad :
       {std::string(), std::string(256, 'x'), std::string("a\nb"), std::string("a\0b", 3),
        std::string("\x7f"), std::string("\xc2\x85"), std::string("\xff"), std::string("\xc3"),
        std::string("\xc0\x80"), std::string("\xed\xa0\x80"), std::string("\xf4\x90\x80\x80"),
        std::string("\xe0\x80\x80"), std::string("\x80")}) {
    spec.name = bad;
    ExpectCode(spec.Validate(), Code::kInvalidArgument);
  }
});

const Test kFields("each impossible field is named", [] {
  const auto refused = [](const std::string& field, OptimizerKind kind,
                          const std::function<void(SparseSpec&)>& change) {
    SparseSpec spec = GoodSpec(kind);
    change(spec);
    ExpectRefused(spec, field);
  };
  using Kind = OptimizerKind;
  refused("dim", Kind::kSgd, [](auto& s) { s.dim = 0; });
  refused("dim", Kind::kSgd, [](auto& s) { s.dim = kMaxDim + 1; });
  refused("initializer.a", Kind::kSgd, [](auto& s) { s.initializer.a = 1e300; });
  refused("initializer.b", Kind::kSgd,
          [](auto& s) { s.initializer = {InitializerKind::kUniform, 1, 0}; });
  refused("initializer.b", Kind::kSgd,
          [](auto& s) { s.initializer = {InitializerKind::kNormal, 0, -1}; });
  refused("optimizer.learning_rate", Kind::kSgd, [](auto& s) { s.optimizer.learning_rate = -1; });
  refused("optimizer.momentum", Kind::kMomentum, [](auto& s) { s.optimizer.momentum = 1.5; });
  refused("optimizer.momentum", Kind::kMomentum, [](auto& s) { s.optimizer.nesterov = true; });
  refused("optimizer.beta1", Kind::kAdam, [](auto& s) { s.optimizer.beta1 = 1.0; });
  refused("optimizer.epsilon", Kind::kAdam, [](auto& s) { s.optimizer.epsilon = 0; });
  refused("optimizer.epsilon", Kind::kAdagrad, [](auto& s) { s.optimizer.epsilon = 1e-60; });
  refused("optimizer.decay", Kind::kRmsprop, [](auto& s) { s.optimizer.decay = 1.1; });
  refused("optimizer.learning_rate_power", Kind::kFtrl,
          [](auto& s) { s.optimizer.learning_rate_power = 0.5; });
  refused("optimizer.ftrl_l1", Kind::kFtrl, [](auto& s) { s.optimizer.ftrl_l1 = -1; });
  refused("optimizer.l2", Kind::kSgd, [](auto& s) { s.optimizer.l2 = -1; });
  refused("admission.count", Kind::kSgd, [](auto& s) { s.admission.count = 0; });
  refused("admission.probability", Kind::kSgd, [](auto& s) { s.admission.probability = 1.1; });
  refused("eviction.min_norm", Kind::kSgd, [](auto& s) { s.eviction.min_norm = -1; });
  refused("optimizer.kind", static_cast<Kind>(static_cast<unsigned>(kLastOptimizer) + 1),
          [](auto&) {});
});

const Test kNans("NaN and infinity are rejected in every field, used or not", [] {
  const auto fields = {&OptimizerSpec::learning_rate,
                       &OptimizerSpec::momentum,
                       &OptimizerSpec::beta1,
                       &OptimizerSpec::beta2,
                       &OptimizerSpec::epsilon,
                       &OptimizerSpec::decay,
                       &OptimizerSpec::initial_accumulator,
                       &OptimizerSpec::learning_rate_power,
                       &OptimizerSpec::ftrl_l1,
                       &OptimizerSpec::ftrl_l2,
                       &OptimizerSpec::l1,
                       &OptimizerSpec::l2};
  for (const auto field : fields) {
    for (const double bad : {kNan, kInfinity, -kInfinity}) {
      SparseSpec spec = GoodSpec();
      spec.optimizer.*field = bad;
      ExpectCode(spec.Validate(), Code::kInvalidArgument);
    }
  }
  SparseSpec unknown = GoodSpec();
  unknown.row_dtype = static_cast<RowDtype>(3);
  ExpectRefused(unknown, "row_dtype");
  for (double* (*field)(SparseSpec&) : {+[](SparseSpec& s) { return &s.initializer.a; },
                                        +[](SparseSpec& s) { return &s.initializer.b; },
                                        +[](SparseSpec& s) { return &s.admission.probability; },
                                        +[](SparseSpec& s) { return &s.eviction.min_norm; }}) {
    SparseSpec spec = GoodSpec();
    *field(spec) = kNan;
    ExpectCode(spec.Validate(), Code::kInvalidArgument);
  }
});

const Test kDifference("the first field that differs is named, ignoring the learning rate", [] {
  SparseSpec have = GoodSpec();
  SparseSpec asked = have;
  asked.optimizer.learning_rate = 7;
  ExpectEqual(DescribeDifference(have, asked), "");
  asked.optimizer.beta2 = 0.5;
  asked.track_dirty = true;
  ExpectEqual(DescribeDifference(have, asked), "optimizer.beta2 is 0.999, expected 0.5");
  asked = have;
  asked.track_dirty = true;
  ExpectEqual(DescribeDifference(have, asked), "track_dirty is false, expected true");
  asked = have;
  asked.row_dtype = RowDtype::kInt8;
  ExpectEqual(DescribeDifference(have, asked), "row_dtype is float32, expected int8");
});

}  // namespace
}  // namespace sparsefleet

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
