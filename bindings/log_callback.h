// A Python callable behind the log hook of servers and clients.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <string>

namespace sparsefleet::python {

using LogFunction = std::function<void(int, const std::string&)>;

// Wraps `callable` (None: an empty function) so that any native thread may call it and any
// thread may drop the last copy. An exception in it is reported as unraisable, not passed on.
LogFunction MakeLogFunction(nanobind::object callable);

}  // namespace sparsefleet::python
