// Turns a core status into the Python exception class of its code.
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>
#include <utility>

#include "status/status.h"

namespace sparsefleet::python {

// Readable text from bytes that a peer may have sent: invalid UTF-8 is replaced.
nanobind::object ReadableText(std::string_view bytes);

// Throws the exception that sparsefleet.errors.error_named(name, message) creates.
// REQUIRES: !status.ok(), the GIL is held.
[[noreturn]] void Raise(const Status& status);

inline void Check(const Status& status) {
  if (!status.ok()) Raise(status);
}

template <typename T>
T Check(Result<T> result) {
  if (!result.ok()) Raise(result.status());
  return std::move(result).value();
}

}  // namespace sparsefleet::python
