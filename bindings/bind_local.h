// What only a store in this process has.
#pragma once

#include <nanobind/nanobind.h>

#include "store_handle.h"

namespace sparsefleet::python {

void BindLocal(nanobind::module_& m, nanobind::class_<StoreHandle>& store);

}  // namespace sparsefleet::python
