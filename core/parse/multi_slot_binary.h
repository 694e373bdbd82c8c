// MultiSlot records in binary, as Fluid's FileInstantDataset reads them.
//
// Format:  file   = { record }
//          record = slot { slot }          all declared slots, in order
//          slot   = count value { value }  count: uint16 >= 1; value: uint64 or float32
// Little-endian, nothing between or around them.
#pragma once

#include <cstddef>
#include <string_view>

#include "parse/column_batch.h"
#include "status/status.h"

namespace sparsefleet {

// Adds records of `bytes` to the batch until it has max_records or the next one is incomplete;
// returns the bytes used. A count of 0, or one that differs from a slot's width, is kCorrupt: what
// follows cannot be parsed; the batch has the records before it.
Result<std::size_t> ReadBinaryRecords(std::string_view bytes, ColumnBatch& batch,
                                      std::size_t max_records);

}  // namespace sparsefleet
