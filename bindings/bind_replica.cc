// A worker's copy of a table's rows. Letters: N keys, U unknown ones, D row width.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "bind.h"
#include "raise.h"
#include "table/replica_table.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsefleet::python {
namespace {

using Replica = std::shared_ptr<ReplicaTable>;

template <typename T>
std::span<T> Flat(const Matrix<T>& matrix) {
  return {matrix.data(), matrix.size()};
}

// Calls `f()` without the GIL.
template <typename F>
auto Released(F f) {
  nb::gil_scoped_release release;
  return f();
}

nb::object Pull(ReplicaTable& replica, const Array<const Key>& keys, const Matrix<float>& out) {
  auto unknown = Check(Released([&] { return replica.Pull(SpanOf(keys), Flat(out)); }));
  const std::size_t shape[] = {unknown.size()};
  return ToNumpy(std::move(unknown), shape);
}

std::uint64_t Step(ReplicaTable& replica, const Array<const Key>& keys,
                   const Matrix<const float>& gradients) {
  return Check(Released([&] { return replica.Step(SpanOf(keys), Flat(gradients)); }))
      .rejected_non_finite;
}

ReplicaWalk WalkStepped(const Replica& replica, std::uint32_t share) {
  if (share == 0) Raise({Code::kInvalidArgument, "share must be >= 1, got 0"});
  return {replica, ReplicaPart::kStepped, static_cast<float>(share)};
}

}  // namespace

void BindReplica(nb::module_& m) {
  nb::class_<ReplicaWalk>(m, "ReplicaWalk")
      .def(
          "next",
          [](ReplicaWalk& walk, const Array<Key>& keys, const Matrix<float>& deltas) {
            return Check(Released([&] { return walk.Next(SpanOf(keys), Flat(deltas)); }));
          },
          "keys"_a, "deltas"_a,
          "Writes the next rows' keys and differences (uint64[N], float32[N, D]) from the front; "
          "returns how many, 0 at the end.");
  nb::class_<ReplicaTable>(m, "Replica", "Rows trained here, beside the servers' values.")
      .def_static(
          "create", [](const SparseSpec& spec) { return Check(ReplicaTable::Create(spec)); },
          "spec"_a)
      .def_prop_ro("size", &ReplicaTable::size, "Rows.")
      .def_prop_ro("memory_bytes", &ReplicaTable::memory_bytes)
      .def(
          "set_learning_rate",
          [](ReplicaTable& replica, double lr) { Check(replica.SetLearningRate(lr)); }, "lr"_a)
      .def("pull", &Pull, "keys"_a, "out"_a,
           nb::sig("def pull(self, keys: numpy.typing.NDArray[numpy.uint64], "
                   "out: numpy.typing.NDArray[numpy.float32]) -> "
                   "numpy.typing.NDArray[numpy.uint32]"),
           "Copies rows as trained here to out (float32[N, D]); returns the positions of keys "
           "without one.")
      .def(
          "insert",
          [](ReplicaTable& replica, const Array<const Key>& keys, const Matrix<const float>& rows) {
            Check(Released([&] { return replica.Insert(SpanOf(keys), Flat(rows)); }));
          },
          "keys"_a, "rows"_a, "Adds rows from the servers (float32[N, D]) for keys without one.")
      .def("step", &Step, "keys"_a, "gradients"_a,
           "One step of SGD (float32[N, D]); returns how many rows were skipped as non-finite.")
      .def("stepped", &WalkStepped, "share"_a,
           "Takes 1/`share` of the unsent difference of the rows stepped since the last time.")
      .def(
          "unsent",
          [](const Replica& replica) { return ReplicaWalk(replica, ReplicaPart::kUnsent, 1.0F); },
          "Takes the whole unsent difference of all rows. Nobody may step meanwhile.")
      .def(
          "take_over",
          [](ReplicaTable& replica, const Array<const Key>& keys, const Matrix<const float>& served,
             bool exactly) {
            Check(Released([&] { return replica.TakeOver(SpanOf(keys), Flat(served), exactly); }));
          },
          "keys"_a, "served"_a, "exactly"_a,
          "Takes over the servers' current rows (float32[N, D]); skips keys without a row.");
}

}  // namespace sparsefleet::python
