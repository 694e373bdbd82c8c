// The MultiSlot text format.
//
// Format:  line  = slot { blank slot } [ blanks ]     in the order of the declared slots
//          slot  = count { blank value }              exactly `count` values, count >= 1
//          value = unsigned decimal 64-bit number | decimal float | text without blanks, as the
//                  slot is declared; a slot of text has count 1
// A blank is a space or tab, or a CR at the end of a line; several count as one.
#pragma once

#include <memory>
#include <vector>

#include "parse/record_format.h"
#include "status/status.h"

namespace sparsefleet {

// Fails without slots, if two have the same name, or if one has no name.
Result<std::shared_ptr<const RecordFormat>> MakeMultiSlot(std::vector<ColumnSpec> slots);

}  // namespace sparsefleet
