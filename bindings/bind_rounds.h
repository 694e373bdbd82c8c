// Parts of Store that are bound apart.
#pragma once

#include <nanobind/nanobind.h>

#include "store_handle.h"

namespace sparsefleet::python {

void BindRounds(nanobind::module_& m, nanobind::class_<StoreHandle>& store);
void BindChanges(nanobind::class_<StoreHandle>& store);

}  // namespace sparsefleet::python
