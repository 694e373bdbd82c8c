// A format of lines, shared by the parsers that read with it.
#pragma once

#include <memory>

#include "parse/record_format.h"

namespace sparsefleet::python {

struct FormatHandle {
  std::shared_ptr<const RecordFormat> format;
};

}  // namespace sparsefleet::python
