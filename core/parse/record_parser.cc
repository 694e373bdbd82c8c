#include "parse/record_parser.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace sparsefleet {

void RecordParser::BeginFile(std::uint64_t skip_lines, LineShare share) {
  block_ = {};
  carried_.clear();
  carried_used_ = false;
  skipping_ = false;
  finished_ = false;
  skip_lines_ = skip_lines;
  share_ = share;
  line_ = 0;
}

void RecordParser::Feed(std::string_view block) { block_ = block; }

void RecordParser::Finish() {
  block_ = {};
  finished_ = true;
}

ParseOutcome RecordParser::Parse(ColumnBatch& batch, std::size_t max_records) {
  std::string_view line;
  LineProblem problem;
  while (batch.num_records() < max_records) {
    if (!TakeLine(line)) {
      if (carried_.size() <= max_line_bytes_) return ParseOutcome::kNeedBlock;
      const ParseOutcome outcome = RefuseLong();
      if (IsSkipped()) continue;
      return outcome;
    }
    ++line_;
    if (IsSkipped()) continue;
    if (line.size() > max_line_bytes_) return Refuse(line, {});
    if (!format_->Parse(line, batch, problem)) {
      batch.DropUnfinished();
      return Refuse(line, std::move(problem));
    }
  }
  return ParseOutcome::kBatchFull;
}

// The next complete line; false if the block has none, in which case its rest is kept.
bool RecordParser::TakeLine(std::string_view& line) {
  if (carried_used_) {
    carried_.clear();
    carried_used_ = false;
  }
  const auto* lf = static_cast<const char*>(
      block_.empty() ? nullptr : std::memchr(block_.data(), '\n', block_.size()));
  if (lf == nullptr) {
    if (!skipping_) carried_.append(block_);
    block_ = {};
    if (!finished_ || carried_.empty() || carried_.size() > max_line_bytes_) return false;
    carried_used_ = true;
    line = carried_;
    return true;
  }
  const auto size = static_cast<std::size_t>(lf - block_.data());
  line = block_.substr(0, size);
  block_.remove_prefix(size + 1);
  if (skipping_) {  // the rest of a rejected line
    skipping_ = false;
    return TakeLine(line);
  }
  if (!carried_.empty()) {
    carried_.append(line);
    carried_used_ = true;
    line = carried_;
  }
  return true;
}

ParseOutcome RecordParser::Refuse(std::string_view line, LineProblem problem) {
  if (line.size() > max_line_bytes_) {
    problem = {max_line_bytes_ + 1,
               "expected a line of at most " + std::to_string(max_line_bytes_) + " bytes"};
  }
  bad_ = {line_, std::move(problem), line.substr(0, std::min(line.size(), kMaxKeptBytes))};
  return ParseOutcome::kBadLine;
}

// A line that is too long and whose end has not arrived.
ParseOutcome RecordParser::RefuseLong() {
  ++line_;
  skipping_ = true;
  carried_used_ = true;  // valid until the next call
  return Refuse(carried_, {});
}

}  // namespace sparsefleet
