// CSV with a schema that assigns the fields of a line to slots.
//
// Format:  line  = field { separator field } [ CR ]
//          field = quote { any byte but quote | quote quote } quote | { any byte but separator }
// Spaces around a field, outside its quotes, are not part of it, unless they are the separator.
// A line is a record: no field contains a line end, quoted or not.
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
// each, or one field with a list of `width` values; otherwise one field.
struct CsvSlot {
  ColumnSpec column;
  // Ids are Hash64(text, seed + i) for the i-th field of the slot, from 0; otherwise numbers, where
  // ids may be unsigned 64-bit or negative 64-bit.
  std::optional<std::uint64_t> hash_seed;
  char list_separator = '\0';  // between values of one field; '\0': a field is one value
  // The value used if one is missing. Without it, a missing value is a problem, or, if hashed, a
  // text like any other; a missing field of a slot without width then has no values.
  std::optional<std::int64_t> missing_id;
  std::optional<float> missing_float;
};

struct CsvField {
  static constexpr std::uint32_t kUnused = UINT32_MAX;
  std::string name;              // for messages
  std::uint32_t slot = kUnused;  // the slot of its values
  std::uint32_t index = 0;       // index within the slot
};

struct CsvOptions {
  char separator = ',';
  char quote = '"';                        // '\0': none, quotes are ordinary bytes
  std::vector<std::string> missing_texts;  // texts that mean a missing value
  std::vector<CsvSlot> slots;
  std::vector<CsvField> fields;  // in order; every line has all of them
};

// Fails if fields and slots do not match, or a separator has another role too.
Result<std::shared_ptr<const RecordFormat>> MakeCsv(CsvOptions options);

}  // namespace sparsefleet
