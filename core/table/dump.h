// Tables on disk, as one server leaves them: a directory with one file a table and server.
// Format: docs/table_dump.md. Checked by CRC; written to a temporary
// name, synced and renamed, so a half-written file is never taken for a whole one.
#pragma once

#include <cstdint>
#include <string>

#include "status/status.h"
#include "table/table_set.h"

namespace sparsefleet {

// Writes every table of `tables` to `directory` (made if missing) as
// "<table name, percent-encoded>.<index>-of-<num_servers>.sfd". Sparse tables: a consistent cut.
Status SaveTables(TableSet& tables, const std::string& directory, std::uint32_t index,
                  std::uint32_t num_servers);

// Reads into the tables already defined all rows below `directory` whose OwnerOf() is `index` of
// `num_servers`, whatever the number of servers that wrote them; dense tables: the range that is
// this server's. All files are verified (complete set, checksums, width, optimizer) before the
// first row is changed. kNotFound, kCorrupt, kShapeMismatch naming file, expected and found. Rows
// not in the dump are removed.
Status LoadTables(TableSet& tables, const std::string& directory, std::uint32_t index,
                  std::uint32_t num_servers);

}  // namespace sparsefleet
