// Parses blocks of a file's bytes, split anywhere, into records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "parse/record_format.h"

namespace sparsefleet {

enum class ParseOutcome : std::uint8_t {
  kNeedBlock = 0,  // the block is used up: Feed() the next, or Finish()
  kBatchFull = 1,  // the batch has max_records; call again with room for more
  kBadLine = 2,    // bad_line() was skipped; call again to continue
};

// Which lines of a file to parse: line n, from 0, belongs to share n % num_shares. All lines are
// counted; those of other shares cost no more than the search for their ends.
struct LineShare {
  std::uint64_t index = 0;
  std::uint64_t num_shares = 1;
};

struct BadLine {
  std::uint64_t line = 0;  // in its file, from 1
  LineProblem problem;
  std::string_view text;  // without LF, truncated after kMaxKeptBytes; valid until the next call
};

// Parses the lines of one file after another. Only a line split across blocks is copied; no line
// allocates. Not thread-safe.
class RecordParser {
 public:
  static constexpr std::size_t kMaxKeptBytes = 64 * 1024;

  // A line longer than `max_line_bytes` is a bad line, so that a file without line ends does not
  // exhaust memory.
  RecordParser(std::shared_ptr<const RecordFormat> format, std::size_t max_line_bytes)
      : format_(std::move(format)), max_line_bytes_(max_line_bytes) {}

  // Starts counting lines from 1 again; the first `skip_lines` and those of other shares are
  // counted but not parsed. Unparsed bytes of an earlier file are dropped. REQUIRES: share.index <
  // share.num_shares.
  void BeginFile(std::uint64_t skip_lines = 0, LineShare share = {});

  // Passes the next bytes, which must stay valid until Parse() asks for another block.
  // REQUIRES: BeginFile() was called, or Parse() returned kNeedBlock.
  void Feed(std::string_view block);

  // No more bytes: a last line without LF is complete. Call Parse() again until kNeedBlock.
  void Finish();

  // Adds records to the batch until it has max_records, a line is bad or the block ends.
  ParseOutcome Parse(ColumnBatch& batch, std::size_t max_records);

  const BadLine& bad_line() const { return bad_; }
  std::uint64_t line() const { return line_; }  // lines of this file so far, good and bad

 private:
  bool TakeLine(std::string_view& line);
  bool IsSkipped() const {
    return line_ <= skip_lines_ || (line_ - 1) % share_.num_shares != share_.index;
  }
  ParseOutcome Refuse(std::string_view line, LineProblem problem);
  ParseOutcome RefuseLong();

  const std::shared_ptr<const RecordFormat> format_;
  const std::size_t max_line_bytes_;
  std::string_view block_;
  std::string carried_;        // the start of a line that ends in a later block
  bool carried_used_ = false;  // carried_ was returned as a line
  bool skipping_ = false;      // skipping to the end of a line that is too long
  bool finished_ = false;
  std::uint64_t skip_lines_ = 0;
  LineShare share_;
  std::uint64_t line_ = 0;
  BadLine bad_;
};

}  // namespace sparsefleet
