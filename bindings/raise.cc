#include "raise.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

namespace nb = nanobind;

namespace sparsefleet::python {

void Raise(const Status& status) {
  const nb::object error =
      nb::module_::import_("sparsefleet.errors")
          .attr("error_for")(static_cast<int>(status.code()), status.message());
  PyErr_SetObject(error.type().ptr(), error.ptr());
  throw nb::python_error();
}

}  // namespace sparsefleet::python
