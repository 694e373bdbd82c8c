// A line format, shared by the parsers that use it.
#pragma once

#include <memory>

#include "parse/record_format.h"

namespace sparsefleet::python {

struct FormatHandle {
  std::shared_ptr<const RecordFormat> format;
};

}  // namespace sparsefleet::python
