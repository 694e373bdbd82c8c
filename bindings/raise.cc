#include "raise.h"

namespace nb = nanobind;

namespace sparsefleet::python {

nb::object ReadableText(std::string_view bytes) {
  PyObject* text =
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace");
  if (text == nullptr) throw nb::python_error();
  return nb::steal(text);
}

void Raise(const Status& status) {
  const nb::object error =
      nb::module_::import_("sparsefleet.errors")
          .attr("error_named")(CodeName(status.code()).c_str(), ReadableText(status.message()));
  PyErr_SetObject(error.type().ptr(), error.ptr());
  throw nb::python_error();
}

}  // namespace sparsefleet::python
