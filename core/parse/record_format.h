// Turns one line of text into one record.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "parse/column_batch.h"

namespace sparsefleet {

// The problem with a line.
struct LineProblem {
  std::size_t column = 0;  // of the line, in bytes from 1
  std::string what;        // what was expected and what was found
};

// Thread-safe: holds no state between lines.
class RecordFormat {
 public:
  virtual ~RecordFormat() = default;

  // The columns of batches in this format.
  virtual const std::vector<ColumnSpec>& columns() const = 0;

  // Adds the record of `line`, which has no LF, to the batch. Returns false if it is malformed:
  // `problem` says why, and the batch has unfinished values for the caller to drop.
  virtual bool Parse(std::string_view line, ColumnBatch& batch, LineProblem& problem) const = 0;
};

// The text at `at` for a message: the token up to the next blank, truncated if long, unprintable
// bytes as \xNN; "the end of the line" if there is none.
std::string FoundAt(const char* at, const char* end);

// "expected <wanted>, found ..."; with the column of `at`.
LineProblem ProblemAt(std::string_view line, const char* at, const std::string& wanted);

}  // namespace sparsefleet
