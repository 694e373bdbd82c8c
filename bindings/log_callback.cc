#include "log_callback.h"

#include "raise.h"

namespace nb = nanobind;

namespace sparsefleet::python {

// Used only under the GIL; leaked if the interpreter is already gone.
struct LogCallback::Cell {
  explicit Cell(PyObject* held) : callable(held) {}
  Cell(const Cell&) = delete;
  Cell& operator=(const Cell&) = delete;
  ~Cell() {
    if (callable == nullptr || !nb::is_alive()) return;
    nb::gil_scoped_acquire gil;
    Py_DECREF(callable);
  }
  PyObject* callable;
};

LogCallback::LogCallback(nb::object callable) {
  if (!callable.is_none()) cell_ = std::make_shared<Cell>(callable.release().ptr());
}

LogFunction LogCallback::function() const {
  if (cell_ == nullptr) return {};
  return [cell = cell_](int severity, const std::string& message) {
    if (!nb::is_alive()) return;
    nb::gil_scoped_acquire gil;
    if (cell->callable == nullptr) return;
    try {
      nb::borrow<nb::callable>(cell->callable)(severity, ReadableText(message));
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("sparsefleet log callback");
    }
  };
}

void LogCallback::Clear() {
  if (cell_ == nullptr) return;
  PyObject* callable = std::exchange(cell_->callable, nullptr);
  Py_XDECREF(callable);
}

}  // namespace sparsefleet::python
