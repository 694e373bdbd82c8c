// A body of rows (EncodeRows) without table name, state and counters, whose values the table writes
// in place.
#pragma once

#include <cstddef>
#include <span>

#include "key/key.h"

namespace sparsefleet {

std::size_t PlainRowsBytes(std::size_t num_keys, std::size_t dim);

// Writes everything except the values; returns where those go, row after row.
// REQUIRES: body.size() == PlainRowsBytes(keys.size(), dim), aligned to 8.
std::span<float> PutPlainRows(std::span<const Key> keys, std::size_t dim,
                              std::span<std::byte> body);

}  // namespace sparsefleet
