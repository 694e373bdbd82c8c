// Compares a text format with a simple second parser, line by line, for fuzz tests.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parse/record_parser.h"
#include "testing/check.h"

namespace sparsefleet::testing {

inline constexpr int kFuzzLines = 150'000;  // of each format
inline constexpr int kFuzzLinesPerFile = 500;
inline constexpr std::size_t kFuzzLineBytes = 4096;  // longer lines are bad

using RecordBits = std::vector<std::vector<std::uint64_t>>;  // slot by slot
using RandomBelow = std::function<std::uint64_t(std::uint64_t bound)>;
using SecondParser = std::function<bool(const std::string& line, RecordBits& record)>;

// Feeds the lines in blocks of odd sizes, each in memory of exactly its size so that a sanitizer
// sees a read beyond it. Returns whether each line is valid.
inline std::vector<bool> ParseInBlocks(const std::shared_ptr<const RecordFormat>& format,
                                       const std::vector<std::string>& lines, bool ends_with_lf,
                                       const RandomBelow& below, ColumnBatch& batch) {
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  if (!ends_with_lf) text.pop_back();
  RecordParser parser(format, kFuzzLineBytes);
  parser.BeginFile();
  std::vector<bool> sound(lines.size(), true);
  const auto drain = [&] {
    for (;;) {
      const ParseOutcome outcome = parser.Parse(batch, SIZE_MAX);
      if (outcome == ParseOutcome::kNeedBlock) return;
      Require(outcome == ParseOutcome::kBadLine);
      const BadLine& bad = parser.bad_line();
      Require(bad.line >= 1 && bad.line <= lines.size());
      const std::string& line = lines[bad.line - 1];
      Expect(line.substr(0, bad.text.size()) == bad.text, "the bad line's own text");
      Expect(bad.problem.column >= 1 && bad.problem.column <= line.size() + 1);
      Expect(bad.problem.what.starts_with("expected ") && bad.problem.what.size() < 300);
      sound[bad.line - 1] = false;
    }
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t size = std::min<std::size_t>(1 + below(9000), text.size() - at);
    const auto block = std::make_unique_for_overwrite<char[]>(size);
    std::copy_n(text.data() + at, size, block.get());
    parser.Feed({block.get(), size});
    drain();
    at += size;
  }
  parser.Finish();
  drain();
  ExpectEqual(parser.line(), lines.size());
  return sound;
}

// Record r of the batch.
inline RecordBits RecordOf(const ColumnBatch& batch, std::size_t r) {
  RecordBits record;
  for (const auto& column : batch.columns()) {
    const std::size_t width = column.spec.width;
    const std::size_t begin = width ? r * width : static_cast<std::size_t>(column.offsets[r]);
    const std::size_t end = width ? begin + width : static_cast<std::size_t>(column.offsets[r + 1]);
    auto& values = record.emplace_back();
    for (std::size_t i = begin; i < end; ++i) {
      if (column.spec.kind == ValueKind::kText) {
        values.push_back(column.texts[i]);
      } else {
        values.push_back(column.spec.kind == ValueKind::kFloat
                             ? std::bit_cast<std::uint32_t>(column.floats[i])
                             : std::bit_cast<std::uint64_t>(column.ids[i]));
      }
    }
  }
  return record;
}

// Parses the lines into `batch`, which is empty. Requires that both parsers agree on the validity
// and content of every line.
inline void CompareParsers(const std::shared_ptr<const RecordFormat>& format,
                           const std::vector<std::string>& lines, bool ends_with_lf,
                           const RandomBelow& below, const SecondParser& second,
                           ColumnBatch& batch) {
  const auto accepted = ParseInBlocks(format, lines, ends_with_lf, below, batch);
  std::size_t r = 0;
  RecordBits record;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const bool wanted = lines[i].size() <= kFuzzLineBytes && second(lines[i], record);
    Require(accepted[i] == wanted, "the parsers disagree on line: " + lines[i]);
    if (wanted) Require(RecordOf(batch, r++) == record, "different values: " + lines[i]);
  }
  ExpectEqual(r, batch.num_records());
}

}  // namespace sparsefleet::testing
