// Separated text with a schema: which field of a line goes to which slot.
//
// Format:  line  = field { separator field } [ CR ]
//          field = quote { any byte but quote | quote quote } quote | { any byte but separator }
// Spaces around a field, outside of its quotes, are no part of it, unless they are the separator.
// A line is a record: no field holds a line end, quoted or not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parse/record_format.h"
#include "status/status.h"

namespace sparsefleet {

// How the texts of a slot's fields become values. With a width, it has `width` fields of one value
// each, or one field with a list of `width` values; without, one field.
struct CsvSlot {
  ColumnSpec column;
  // Ids are Hash64(text, seed + i) for the i-th field of the slot, from 0; otherwise numbers, of
  // which ids may be unsigned 64-bit or negative 64-bit ones.
  std::optional<std::uint64_t> hash_seed;
  char list_separator = '\0';  // between values of one field; '\0': a field is one value
  // What a missing value is. Without, one is a problem, or, hashed, a text like any other; a
  // missing field of a slot without width is then no value at all.
  std::optional<std::int64_t> missing_id;
  std::optional<float> missing_float;
};

struct CsvField {
  static constexpr std::uint32_t kUnused = UINT32_MAX;
  std::string name;              // for messages
  std::uint32_t slot = kUnused;  // whose values it has
  std::uint32_t index = 0;       // which field of the slot
};

struct CsvOptions {
  char separator = ',';
  char quote = '"';                        // '\0': none, quotes are bytes like others
  std::vector<std::string> missing_texts;  // what stands for a missing value
  std::vector<CsvSlot> slots;
  std::vector<CsvField> fields;  // of a line, in order; every line has all
};

// Fails if fields and slots do not fit together, or a separator is also something else.
Result<std::shared_ptr<const RecordFormat>> MakeCsv(CsvOptions options);

}  // namespace sparsefleet
