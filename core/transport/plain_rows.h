// A body of rows (EncodeRows) without a table's name, state and counters, whose values their table
// writes in place.
#pragma once

#include <cstddef>
#include <span>

#include "table/key.h"

namespace sparsefleet {

std::size_t PlainRowsBytes(std::size_t num_keys, std::size_t dim);

// Writes all but the values; returns where these go, row after row.
// REQUIRES: body.size() == PlainRowsBytes(keys.size(), dim), aligned to 8.
std::span<float> PutPlainRows(std::span<const Key> keys, std::size_t dim,
                              std::span<std::byte> body);

}  // namespace sparsefleet
