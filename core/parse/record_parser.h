// Blocks of a file's bytes, cut anywhere, into records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "parse/record_format.h"

namespace sparsefleet {

enum class ParseOutcome : std::uint8_t {
  kNeedBlock = 0,  // all of the block is used up: Feed() the next, or Finish()
  kBatchFull = 1,  // the batch has max_records; call again with room for more
  kBadLine = 2,    // bad_line() was skipped; call again to go on
};

struct BadLine {
  std::uint64_t line = 0;  // in its file, from 1
  LineProblem problem;
  std::string_view text;  // without LF, cut after kMaxKeptBytes; valid until the next call
};

// The lines of one file after the other. Only a line that two blocks share is copied; nothing is
// allocated for a line. Not thread-safe.
class RecordParser {
 public:
  static constexpr std::size_t kMaxKeptBytes = 64 * 1024;

  // A line over `max_line_bytes` is a bad line, so that a file without line ends does not fill the
  // memory.
  RecordParser(std::shared_ptr<const RecordFormat> format, std::size_t max_line_bytes)
      : format_(std::move(format)), max_line_bytes_(max_line_bytes) {}

  // Lines count from 1 again; the first `skip_lines` are counted and not looked at. What an earlier
  // file left unparsed is forgotten.
  void BeginFile(std::uint64_t skip_lines = 0);

  // Gives the next bytes, which must live until Parse() asks for another block.
  // REQUIRES: BeginFile() was called, or Parse() said kNeedBlock.
  void Feed(std::string_view block);

  // No more bytes: a last line without LF counts as a line. Parse() once more until kNeedBlock.
  void Finish();

  // Adds records to the batch until it has max_records, a line is bad or the block ends.
  ParseOutcome Parse(ColumnBatch& batch, std::size_t max_records);

  const BadLine& bad_line() const { return bad_; }
  std::uint64_t line() const { return line_; }  // lines seen of this file, good and bad

 private:
  bool TakeLine(std::string_view& line);
  ParseOutcome Refuse(std::string_view line, LineProblem problem);
  ParseOutcome RefuseLong();

  const std::shared_ptr<const RecordFormat> format_;
  const std::size_t max_line_bytes_;
  std::string_view block_;
  std::string carried_;        // the beginning of a line whose end is in a later block
  bool carried_used_ = false;  // carried_ was given out as a line
  bool skipping_ = false;      // to the end of a line that was too long
  bool finished_ = false;
  std::uint64_t skip_lines_ = 0;
  std::uint64_t line_ = 0;
  BadLine bad_;
};

}  // namespace sparsefleet
