// What only a store in this process has: its parameters in place, and a whole step in one push.
#include "bind_local.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "bind.h"
#include "push_sections.h"
#include "raise.h"
#include "store/local_store.h"
#include "store/process_memory.h"
#include "store_call.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsefleet::python {

Result<LocalStore*> LocalOf(Store& store, const char* call) {
  if (auto* local = dynamic_cast<LocalStore*>(&store)) return local;
  return Status(Code::kInvalidArgument,
                std::string(call) + ": the tables of this store are on servers");
}

namespace {

// (dense table, the parts of its gradient)
using PartsTuple = std::tuple<std::string, std::vector<Array<const float>>>;

PushTotals PushStep(const StoreHandle& handle, const std::vector<PushTuple>& sections,
                    const std::vector<PartsTuple>& dense, std::uint64_t step, double timeout_s) {
  const auto rows = SectionsOf(sections);
  std::vector<std::vector<std::span<const float>>> spans(dense.size());
  for (std::size_t i = 0; i < dense.size(); ++i) {
    for (const auto& part : std::get<1>(dense[i])) spans[i].push_back(SpanOf(part));
  }
  return TotalsOf(Check(Call(handle, [&](Store& store) -> Result<PushResult> {
    auto local = LocalOf(store, "push_step");
    if (!local.ok()) return local.status();
    PushResult total;
    for (std::size_t i = 0; i < dense.size(); ++i) {
      auto pushed = local.value()->PushDenseParts(std::get<0>(dense[i]), spans[i]);
      if (!pushed.ok()) return pushed;
      total += pushed.value();
    }
    if (rows.sections.empty()) return total;
    auto pushed = store.Push(rows, step, timeout_s);
    if (pushed.ok()) total += pushed.value();
    return pushed.ok() ? Result<PushResult>(total) : pushed;
  })));
}

nb::object PullKnown(const StoreHandle& handle, const std::string& table,
                     const Array<const Key>& keys, const Array<float>& out) {
  auto unknown = Check(Call(handle, [&](Store& store) -> Result<std::vector<std::uint32_t>> {
    auto local = LocalOf(store, "pull_known");
    if (!local.ok()) return local.status();
    auto sparse = local.value()->tables().Sparse(table);
    if (!sparse.ok()) return sparse.status();
    return sparse.value()->PullKnown(SpanOf(keys), SpanOf(out));
  }));
  const std::size_t shape[] = {unknown.size()};
  return ToNumpy(std::move(unknown), shape);
}

nb::object LiveDense(const StoreHandle& handle, const std::string& table) {
  auto dense = Check(Call(handle, [&](Store& store) -> Result<std::shared_ptr<DenseTable>> {
    auto local = LocalOf(store, "live_dense");
    if (!local.ok()) return local.status();
    return local.value()->tables().Dense(table);
  }));
  const std::span<float> values = dense->LiveValues();
  auto held = std::make_unique<std::shared_ptr<DenseTable>>(std::move(dense));
  nb::capsule owner(held.release(),
                    [](void* p) noexcept { delete static_cast<std::shared_ptr<DenseTable>*>(p); });
  const std::size_t size = values.size();
  return nb::cast(nb::ndarray<nb::numpy, float>(values.data(), 1, &size, owner));
}

}  // namespace

void BindLocal(nb::module_& m, nb::class_<StoreHandle>& store) {
  m.def("keep_freed_memory", &KeepFreedMemory,
        "Memory that this process frees stays with it, to be used again without page faults.");
  store
      .def("push_step", &PushStep, "sections"_a, "dense"_a, "step"_a, "timeout_s"_a,
           "Gradients of dense tables, in parts, then those of `push`.")
      .def("pull_known", &PullKnown, "table"_a, "keys"_a, "out"_a,
           nb::sig("def pull_known(self, table: str, keys: numpy.typing.NDArray[numpy.uint64], "
                   "out: numpy.typing.NDArray[numpy.float32]) -> "
                   "numpy.typing.NDArray[numpy.uint32]"),
           "Rows of the keys that have one, into `out`; the places of the others.")
      .def("live_dense", &LiveDense, "table"_a,
           nb::sig("def live_dense(self, table: str) -> numpy.typing.NDArray[numpy.float32]"));
}

}  // namespace sparsefleet::python
