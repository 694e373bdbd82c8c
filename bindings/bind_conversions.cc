// Conversion of one-element arrays to numbers, which NumPy removed in 2.4.
#include <nanobind/nanobind.h>

#include "bind.h"

namespace nb = nanobind;

namespace sparsefleet::python {
namespace {

using Convert = PyObject* (*)(PyObject*);

Convert g_to_float = nullptr;  // NumPy's own
Convert g_to_int = nullptr;

// Converts the element of a one-element array; any other array as NumPy does.
PyObject* ConvertOne(PyObject* array, Convert numpys, Convert of_number) {
  const nb::object size = nb::steal(PyObject_GetAttrString(array, "size"));
  if (!size.is_valid()) return nullptr;
  const long count = PyLong_AsLong(size.ptr());
  if (count == -1 && PyErr_Occurred() != nullptr) return nullptr;
  if (count != 1) return numpys(array);
  const nb::object element = nb::steal(PyObject_CallMethod(array, "item", nullptr));
  return element.is_valid() ? of_number(element.ptr()) : nullptr;
}

PyObject* ToFloat(PyObject* array) { return ConvertOne(array, g_to_float, PyNumber_Float); }
PyObject* ToInt(PyObject* array) { return ConvertOne(array, g_to_int, PyNumber_Long); }

}  // namespace

void BindConversions(nb::module_& m) {
  m.def(
      "convert_one_element_arrays",
      [](nb::handle array_type) {
        if (!PyType_Check(array_type.ptr())) {
          throw nb::type_error("array_type must be the class numpy.ndarray");
        }
        auto* numbers = reinterpret_cast<PyTypeObject*>(array_type.ptr())->tp_as_number;
        if (numbers == nullptr || numbers->nb_float == ToFloat) return;
        g_to_float = numbers->nb_float;
        g_to_int = numbers->nb_int;
        numbers->nb_float = ToFloat;
        numbers->nb_int = ToInt;
      },
      nb::arg("array_type"),
      "Let float(), int() and \"%f\" accept arrays of one element whatever their number of "
      "dimensions, for the rest of the process. array_type: numpy.ndarray.");
}

}  // namespace sparsefleet::python
