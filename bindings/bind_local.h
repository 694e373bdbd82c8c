// Functions that only a store in this process has.
#pragma once

#include <nanobind/nanobind.h>

#include "store/local_store.h"
#include "store_handle.h"

namespace sparsefleet::python {

// kInvalidArgument naming the call if the store is remote.
Result<LocalStore*> LocalOf(Store& store, const char* call);

void BindLocal(nanobind::module_& m, nanobind::class_<StoreHandle>& store);
void BindTables(nanobind::module_& m, nanobind::class_<StoreHandle>& store);

}  // namespace sparsefleet::python
