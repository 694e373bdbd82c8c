#include "log_callback.h"

#include <nanobind/stl/string.h>

#include <memory>

namespace nb = nanobind;

namespace sparsefleet::python {

LogFunction MakeLogFunction(nb::object callable) {
  if (callable.is_none()) return {};
  // Dropped under the GIL; leaked if the interpreter is already gone.
  std::shared_ptr<PyObject> held(callable.release().ptr(), [](PyObject* object) {
    if (!nb::is_alive()) return;
    nb::gil_scoped_acquire gil;
    Py_DECREF(object);
  });
  return [held](int severity, const std::string& message) {
    if (!nb::is_alive()) return;
    nb::gil_scoped_acquire gil;
    try {
      nb::borrow<nb::callable>(held.get())(severity, message);
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("sparsefleet log callback");
    }
  };
}

}  // namespace sparsefleet::python
