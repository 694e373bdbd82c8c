// Table specs as plain objects with settable fields; sparsefleet.store fills them in.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bind.h"
#include "raise.h"
#include "table/sparse_table.h"
#include "table/table_spec.h"

namespace nb = nanobind;

namespace sparsefleet::python {
namespace {

void BindEnums(nb::module_& m) {
  nb::enum_<InitializerKind>(m, "InitializerKind")
      .value("constant", InitializerKind::kConstant)
      .value("uniform", InitializerKind::kUniform)
      .value("normal", InitializerKind::kNormal)
      .value("truncated_normal", InitializerKind::kTruncatedNormal);
  nb::enum_<OptimizerKind>(m, "OptimizerKind")
      .value("sgd", OptimizerKind::kSgd)
      .value("momentum", OptimizerKind::kMomentum)
      .value("adagrad", OptimizerKind::kAdagrad)
      .value("rowwise_adagrad", OptimizerKind::kRowwiseAdagrad)
      .value("decayed_adagrad", OptimizerKind::kDecayedAdagrad)
      .value("rmsprop", OptimizerKind::kRmsprop)
      .value("adam", OptimizerKind::kAdam)
      .value("adamax", OptimizerKind::kAdamax)
      .value("ftrl", OptimizerKind::kFtrl)
      .value("adamw", OptimizerKind::kAdamw)
      .value("adadelta", OptimizerKind::kAdadelta)
      .value("fluid_adadelta", OptimizerKind::kFluidAdadelta)
      .value("fluid_rmsprop", OptimizerKind::kFluidRmsprop)
      .value("lars", OptimizerKind::kLars)
      .value("lamb", OptimizerKind::kLamb);
  nb::enum_<AdmissionKind>(m, "AdmissionKind")
      .value("always", AdmissionKind::kAlways)
      .value("count", AdmissionKind::kCount)
      .value("probability", AdmissionKind::kProbability);
  nb::enum_<NonFinitePolicy>(m, "NonFinitePolicy")
      .value("reject_row", NonFinitePolicy::kRejectRow)
      .value("raise_error", NonFinitePolicy::kRaise);
  nb::enum_<RowDtype>(m, "RowDtype")
      .value("float32", RowDtype::kFloat32)
      .value("bf16", RowDtype::kBf16)
      .value("int8", RowDtype::kInt8);
  nb::enum_<PullMode>(m, "PullMode")
      .value("train", PullMode::kTrain)
      .value("infer_zeros", PullMode::kInferZeros)
      .value("infer_initial", PullMode::kInferInitial);
}

void BindParts(nb::module_& m) {
  nb::class_<InitializerSpec>(m, "InitializerSpec")
      .def(nb::init<>())
      .def_rw("kind", &InitializerSpec::kind)
      .def_rw("a", &InitializerSpec::a)
      .def_rw("b", &InitializerSpec::b);
  nb::class_<OptimizerSpec>(m, "OptimizerSpec")
      .def(nb::init<>())
      .def_rw("kind", &OptimizerSpec::kind)
      .def_rw("learning_rate", &OptimizerSpec::learning_rate)
      .def_rw("momentum", &OptimizerSpec::momentum)
      .def_rw("nesterov", &OptimizerSpec::nesterov)
      .def_rw("beta1", &OptimizerSpec::beta1)
      .def_rw("beta2", &OptimizerSpec::beta2)
      .def_rw("epsilon", &OptimizerSpec::epsilon)
      .def_rw("decay", &OptimizerSpec::decay)
      .def_rw("centered", &OptimizerSpec::centered)
      .def_rw("initial_accumulator", &OptimizerSpec::initial_accumulator)
      .def_rw("learning_rate_power", &OptimizerSpec::learning_rate_power)
      .def_rw("ftrl_l1", &OptimizerSpec::ftrl_l1)
      .def_rw("ftrl_l2", &OptimizerSpec::ftrl_l2)
      .def_rw("l1", &OptimizerSpec::l1)
      .def_rw("l2", &OptimizerSpec::l2);
  nb::class_<AdmissionSpec>(m, "AdmissionSpec")
      .def(nb::init<>())
      .def_rw("kind", &AdmissionSpec::kind)
      .def_rw("count", &AdmissionSpec::count)
      .def_rw("probability", &AdmissionSpec::probability);
  nb::class_<EvictionSpec>(m, "EvictionSpec")
      .def(nb::init<>())
      .def_rw("untouched_steps", &EvictionSpec::untouched_steps)
      .def_rw("untouched_seconds", &EvictionSpec::untouched_seconds)
      .def_rw("min_count", &EvictionSpec::min_count)
      .def_rw("min_norm", &EvictionSpec::min_norm);
}

}  // namespace

void BindSpecs(nb::module_& m) {
  BindEnums(m);
  BindParts(m);
  nb::class_<SparseSpec>(m, "SparseSpec")
      .def(nb::init<>())
      .def_rw("name", &SparseSpec::name)
      .def_rw("dim", &SparseSpec::dim)
      .def_rw("seed", &SparseSpec::seed)
      .def_rw("initializer", &SparseSpec::initializer)
      .def_rw("optimizer", &SparseSpec::optimizer)
      .def_rw("admission", &SparseSpec::admission)
      .def_rw("eviction", &SparseSpec::eviction)
      .def_rw("non_finite", &SparseSpec::non_finite)
      .def_rw("track_count", &SparseSpec::track_count)
      .def_rw("track_step", &SparseSpec::track_step)
      .def_rw("track_seconds", &SparseSpec::track_seconds)
      .def_rw("track_dirty", &SparseSpec::track_dirty)
      .def_rw("row_dtype", &SparseSpec::row_dtype)
      .def("validate", [](const SparseSpec& spec) { Check(spec.Validate()); });
  nb::class_<DenseSpec>(m, "DenseSpec")
      .def(nb::init<>())
      .def_rw("name", &DenseSpec::name)
      .def_rw("size", &DenseSpec::size)
      .def_rw("optimizer", &DenseSpec::optimizer)
      .def_rw("non_finite", &DenseSpec::non_finite)
      .def_rw("min_block_size", &DenseSpec::min_block_size)
      .def("validate", [](const DenseSpec& spec) { Check(spec.Validate()); });
}

}  // namespace sparsefleet::python
