#include "table/table_spec.h"

#include <cmath>
#include <cstdio>
#include <limits>
#include <type_traits>

namespace sparsefleet {
namespace {

std::string Show(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", value);
  return text;
}

// Collects the first problem with a table's fields.
class FieldCheck {
 public:
  explicit FieldCheck(std::string_view table) : table_(table) {}

  void Require(bool holds, std::string_view field, std::string_view wanted, double found) {
    if (holds || !status_.ok()) return;
    status_ = Status(Code::kInvalidArgument, "table '" + table_ + "': " + std::string(field) +
                                                 " must be " + std::string(wanted) + ", got " +
                                                 Show(found));
  }
  void Finite(std::string_view field, double value) {
    Require(std::isfinite(value), field, "finite", value);
  }
  void NotNegative(std::string_view field, double value) {
    Require(std::isfinite(value) && value >= 0, field, "finite and >= 0", value);
  }
  void BelowOne(std::string_view field, double value) {
    Require(value >= 0 && value < 1, field, "in [0, 1)", value);
  }
  void AtMostOne(std::string_view field, double value) {
    Require(value >= 0 && value <= 1, field, "in [0, 1]", value);
  }
  const Status& status() const { return status_; }

 private:
  std::string table_;
  Status status_;
};

// The length of the UTF-8 sequence that starts at `text`, 0 if it is invalid.
std::size_t Utf8Length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates and code points beyond U+10FFFF.
  const unsigned char second = byte(1);
  if (first == 0xe0 && second < 0xa0) return 0;
  if (first == 0xed && second > 0x9f) return 0;
  if (first == 0xf0 && second < 0x90) return 0;
  if (first == 0xf4 && second > 0x8f) return 0;
  return length;
}

Status CheckName(std::string_view name) {
  if (name.empty() || name.size() > kMaxTableNameBytes) {
    return {Code::kInvalidArgument, "table name must have 1 to " +
                                        std::to_string(kMaxTableNameBytes) + " bytes, got " +
                                        std::to_string(name.size())};
  }
  for (std::size_t i = 0; i < name.size();) {
    const std::size_t length = Utf8Length(name.substr(i));
    const auto first = static_cast<unsigned char>(name[i]);
    const bool control =
        first < 0x20 || first == 0x7f ||
        (first == 0xc2 && length == 2 && static_cast<unsigned char>(name[i + 1]) < 0xa0);
    if (length == 0 || control) {
      return {Code::kInvalidArgument,
              "table name must be UTF-8 without control characters, but byte " + std::to_string(i) +
                  " is " + std::to_string(first)};
    }
    i += length;
  }
  return Status::Ok();
}

void CheckEpsilon(FieldCheck& check, const OptimizerSpec& o) {
  // Without it a weight that never had a gradient becomes 0 / 0.
  const bool accumulator_suffices =
      (o.kind == OptimizerKind::kAdagrad || o.kind == OptimizerKind::kRowwiseAdagrad) &&
      static_cast<float>(o.initial_accumulator) > 0;
  const bool positive = std::isfinite(o.epsilon) && static_cast<float>(o.epsilon) > 0;
  check.Require(positive || (accumulator_suffices && o.epsilon == 0), "optimizer.epsilon",
                "finite and > 0", o.epsilon);
}

void CheckOptimizer(FieldCheck& check, const OptimizerSpec& o) {
  const auto kind = static_cast<unsigned>(o.kind);
  check.Require(kind <= static_cast<unsigned>(kLastOptimizer), "optimizer.kind",
                "a known optimizer", kind);
  check.NotNegative("optimizer.learning_rate", o.learning_rate);
  check.Finite("optimizer.momentum", o.momentum);
  check.Finite("optimizer.beta1", o.beta1);
  check.Finite("optimizer.beta2", o.beta2);
  check.Finite("optimizer.epsilon", o.epsilon);
  check.Finite("optimizer.decay", o.decay);
  check.NotNegative("optimizer.initial_accumulator", o.initial_accumulator);
  check.Require(std::isfinite(o.learning_rate_power) && o.learning_rate_power <= 0,
                "optimizer.learning_rate_power", "finite and <= 0", o.learning_rate_power);
  check.NotNegative("optimizer.ftrl_l1", o.ftrl_l1);
  check.NotNegative("optimizer.ftrl_l2", o.ftrl_l2);
  check.NotNegative("optimizer.l1", o.l1);
  check.NotNegative("optimizer.l2", o.l2);
  switch (o.kind) {
    case OptimizerKind::kMomentum:
      check.AtMostOne("optimizer.momentum", o.momentum);
      check.Require(!o.nesterov || o.momentum > 0, "optimizer.momentum", "> 0 with nesterov",
                    o.momentum);
      break;
    case OptimizerKind::kRmsprop:
    case OptimizerKind::kFluidRmsprop:
      check.AtMostOne("optimizer.momentum", o.momentum);
      [[fallthrough]];
    case OptimizerKind::kDecayedAdagrad:
    case OptimizerKind::kAdadelta:
    case OptimizerKind::kFluidAdadelta:
      check.AtMostOne("optimizer.decay", o.decay);
      [[fallthrough]];
    case OptimizerKind::kAdagrad:
    case OptimizerKind::kRowwiseAdagrad:
      CheckEpsilon(check, o);
      break;
    case OptimizerKind::kAdam:
    case OptimizerKind::kAdamw:
    case OptimizerKind::kAdamax:
    case OptimizerKind::kLamb:
      check.BelowOne("optimizer.beta1", o.beta1);
      check.BelowOne("optimizer.beta2", o.beta2);
      CheckEpsilon(check, o);
      break;
    case OptimizerKind::kLars:
      check.AtMostOne("optimizer.momentum", o.momentum);
      check.NotNegative("optimizer.decay", o.decay);
      break;
    case OptimizerKind::kSgd:
    case OptimizerKind::kFtrl:
      break;
  }
}

void CheckInitializer(FieldCheck& check, const InitializerSpec& init) {
  const auto kind = static_cast<unsigned>(init.kind);
  const double limit = std::numeric_limits<float>::max();
  check.Require(kind <= static_cast<unsigned>(InitializerKind::kTruncatedNormal),
                "initializer.kind", "a known initializer", kind);
  check.Require(std::abs(init.a) <= limit, "initializer.a", "finite in float32", init.a);
  check.Require(std::abs(init.b) <= limit, "initializer.b", "finite in float32", init.b);
  if (init.kind == InitializerKind::kUniform) {
    check.Require(init.a <= init.b, "initializer.b", ">= initializer.a", init.b);
  } else if (init.kind != InitializerKind::kConstant) {
    check.Require(init.b >= 0, "initializer.b", "a deviation >= 0", init.b);
  }
}

void CheckPolicy(FieldCheck& check, NonFinitePolicy policy) {
  const auto number = static_cast<unsigned>(policy);
  check.Require(number <= static_cast<unsigned>(NonFinitePolicy::kRaise), "non_finite",
                "a known policy", number);
}

// Compares field by field and keeps the first difference.
class FieldDifference {
 public:
  template <typename T>
  void Compare(std::string_view field, const T& have, const T& asked) {
    if (have == asked || !text_.empty()) return;
    text_ = std::string(field) + " is " + ShowField(have) + ", expected " + ShowField(asked);
  }
  void CompareOptimizer(const OptimizerSpec& have, const OptimizerSpec& asked) {
    Compare("optimizer.kind", have.kind, asked.kind);
    Compare("optimizer.momentum", have.momentum, asked.momentum);
    Compare("optimizer.nesterov", have.nesterov, asked.nesterov);
    Compare("optimizer.beta1", have.beta1, asked.beta1);
    Compare("optimizer.beta2", have.beta2, asked.beta2);
    Compare("optimizer.epsilon", have.epsilon, asked.epsilon);
    Compare("optimizer.decay", have.decay, asked.decay);
    Compare("optimizer.centered", have.centered, asked.centered);
    Compare("optimizer.initial_accumulator", have.initial_accumulator, asked.initial_accumulator);
    Compare("optimizer.learning_rate_power", have.learning_rate_power, asked.learning_rate_power);
    Compare("optimizer.ftrl_l1", have.ftrl_l1, asked.ftrl_l1);
    Compare("optimizer.ftrl_l2", have.ftrl_l2, asked.ftrl_l2);
    Compare("optimizer.l1", have.l1, asked.l1);
    Compare("optimizer.l2", have.l2, asked.l2);
  }
  const std::string& text() const { return text_; }

 private:
  template <typename T>
  static std::string ShowField(const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      return value ? "true" : "false";
    } else if constexpr (std::is_same_v<T, RowDtype>) {
      return std::string(NameOf(value));
    } else if constexpr (std::is_enum_v<T>) {
      return std::to_string(static_cast<unsigned>(value));
    } else if constexpr (std::is_floating_point_v<T>) {
      return Show(value);
    } else {
      return std::to_string(value);
    }
  }
  std::string text_;
};

}  // namespace

std::string_view NameOf(RowDtype dtype) {
  switch (dtype) {
    case RowDtype::kFloat32:
      return "float32";
    case RowDtype::kBf16:
      return "bf16";
    case RowDtype::kInt8:
      return "int8";
  }
  return "unknown";
}

Status SparseSpec::Validate() const {
  if (Status status = CheckName(name); !status.ok()) return status;
  FieldCheck check(name);
  check.Require(dim >= 1 && dim <= kMaxDim, "dim", "in 1 .. " + std::to_string(kMaxDim), dim);
  CheckInitializer(check, initializer);
  CheckOptimizer(check, optimizer);
  check.Require(!NeedsNorms(optimizer.kind), "optimizer.kind",
                "one that updates rows one by one (lars and lamb need the norm of a whole "
                "parameter: hold it in a dense table)",
                static_cast<double>(optimizer.kind));
  const auto admission_kind = static_cast<unsigned>(admission.kind);
  check.Require(admission_kind <= static_cast<unsigned>(AdmissionKind::kProbability),
                "admission.kind", "a known rule", admission_kind);
  check.Require(admission.count >= 1, "admission.count", ">= 1", admission.count);
  check.AtMostOne("admission.probability", admission.probability);
  check.Require(eviction.min_count <= kMaxCount, "eviction.min_count", "<= 2147483647",
                eviction.min_count);
  check.NotNegative("eviction.min_norm", eviction.min_norm);
  CheckPolicy(check, non_finite);
  const auto dtype = static_cast<unsigned>(row_dtype);
  check.Require(dtype <= static_cast<unsigned>(RowDtype::kInt8), "row_dtype",
                "0 (float32), 1 (bf16) or 2 (int8)", dtype);
  return check.status();
}

Status DenseSpec::Validate() const {
  if (Status status = CheckName(name); !status.ok()) return status;
  FieldCheck check(name);
  check.Require(size >= 1 && size <= kMaxDenseSize, "size", "in 1 .. 2^56",
                static_cast<double>(size));
  check.Require(min_block_size >= 1, "min_block_size", ">= 1", static_cast<double>(min_block_size));
  CheckOptimizer(check, optimizer);
  check.Require(optimizer.kind != OptimizerKind::kRowwiseAdagrad, "optimizer.kind",
                "one that needs no rows (row-wise adagrad does)",
                static_cast<double>(optimizer.kind));
  check.Require(!NeedsNorms(optimizer.kind) || min_block_size >= size, "min_block_size",
                ">= size for lars and lamb, which need the norm of the whole parameter on one "
                "server",
                static_cast<double>(min_block_size));
  CheckPolicy(check, non_finite);
  return check.status();
}

std::string DescribeDifference(const SparseSpec& have, const SparseSpec& asked) {
  FieldDifference difference;
  difference.Compare("dim", have.dim, asked.dim);
  difference.Compare("seed", have.seed, asked.seed);
  difference.Compare("initializer.kind", have.initializer.kind, asked.initializer.kind);
  difference.Compare("initializer.a", have.initializer.a, asked.initializer.a);
  difference.Compare("initializer.b", have.initializer.b, asked.initializer.b);
  difference.CompareOptimizer(have.optimizer, asked.optimizer);
  difference.Compare("admission.kind", have.admission.kind, asked.admission.kind);
  difference.Compare("admission.count", have.admission.count, asked.admission.count);
  difference.Compare("admission.probability", have.admission.probability,
                     asked.admission.probability);
  const EvictionSpec& kept = have.eviction;
  const EvictionSpec& wanted = asked.eviction;
  difference.Compare("eviction.untouched_steps", kept.untouched_steps, wanted.untouched_steps);
  difference.Compare("eviction.untouched_seconds", kept.untouched_seconds,
                     wanted.untouched_seconds);
  difference.Compare("eviction.min_count", kept.min_count, wanted.min_count);
  difference.Compare("eviction.min_norm", kept.min_norm, wanted.min_norm);
  difference.Compare("non_finite", have.non_finite, asked.non_finite);
  difference.Compare("track_count", have.track_count, asked.track_count);
  difference.Compare("track_step", have.track_step, asked.track_step);
  difference.Compare("track_seconds", have.track_seconds, asked.track_seconds);
  difference.Compare("track_dirty", have.track_dirty, asked.track_dirty);
  difference.Compare("row_dtype", have.row_dtype, asked.row_dtype);
  return difference.text();
}

std::string DescribeDifference(const DenseSpec& have, const DenseSpec& asked) {
  FieldDifference difference;
  difference.Compare("size", have.size, asked.size);
  difference.CompareOptimizer(have.optimizer, asked.optimizer);
  difference.Compare("non_finite", have.non_finite, asked.non_finite);
  difference.Compare("min_block_size", have.min_block_size, asked.min_block_size);
  return difference.text();
}

}  // namespace sparsefleet
