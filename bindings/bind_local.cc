// Functions that only a store in this process has: its parameters in place.
#include "bind_local.h"

#include <nanobind/stl/string.h>

#include <memory>
#include <span>
#include <string>

#include "bind.h"
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
  m.def("keep_freed_memory", &KeepFreedMemory, "training_threads"_a = 1,
        "Keeps memory that this process frees for reuse without page faults; with several "
        "training threads, lets them allocate from different arenas.");
  store.def("live_dense", &LiveDense, "table"_a,
            nb::sig("def live_dense(self, table: str) -> numpy.typing.NDArray[numpy.float32]"));
}

}  // namespace sparsefleet::python
