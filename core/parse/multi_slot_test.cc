#include "parse/multi_slot.h"

#include <string>
#include <vector>

#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

std::shared_ptr<const RecordFormat> ThreeSlots() {
  return RequireOk(MakeMultiSlot({{"dense", ValueKind::kFloat, 2},
                                  {"ids", ValueKind::kUint64, 0},
                                  {"label", ValueKind::kUint64, 1}}));
}

LineProblem Refused(const std::string& line) {
  const auto format = ThreeSlots();
  ColumnBatch batch(format->columns());
  LineProblem problem;
  Expect(!format->Parse(line, batch, problem), line);
  batch.DropUnfinished();
  ExpectEqual(batch.num_records(), 0u);
  for (const auto& column : batch.columns()) {
    Expect(column.ids.size() == 0 && column.floats.size() == 0, line);
  }
  return problem;
}

void ExpectRefused(const std::string& line, std::size_t column, const std::string& part) {
  const LineProblem problem = Refused(line);
  ExpectEqual(problem.column, column);
  Expect(problem.what.find(part) != std::string::npos, line + ": " + problem.what);
}

const Test kExample("slots become columns: dense ones by width, others with offsets", [] {
  const auto format = ThreeSlots();
  ColumnBatch batch(format->columns());
  LineProblem problem;
  Require(format->Parse("2 0.5 0.25 3 17 18 99 1 1", batch, problem), problem.what);
  Require(format->Parse(" 2\t-1 2e1  1 18446744073709551615 1 +7 \t\r", batch, problem),
          problem.what);
  ExpectEqual(batch.num_records(), 2u);
  const auto& [dense, ids, label] =
      std::tie(batch.columns()[0], batch.columns()[1], batch.columns()[2]);
  ExpectEqual(dense.floats.size(), 4u);
  ExpectEqual(dense.floats[1], 0.25f);
  ExpectEqual(dense.floats[3], 20.0f);
  ExpectEqual(ids.ids.size(), 4u);
  ExpectEqual(ids.ids[2], 99);
  ExpectEqual(ids.ids[3], -1);  // 2^64 - 1 by bit pattern
  ExpectEqual(ids.offsets.size(), 3u);
  ExpectEqual(ids.offsets[1], 3);
  ExpectEqual(ids.offsets[2], 4);
  ExpectEqual(label.ids[1], 7);
  ExpectEqual(label.offsets.size(), 0u);
});

const Test kCounts("a count that is not a positive number is rejected with its position", [] {
  ExpectRefused("", 1, "in slot 'dense' (1 of 3) a count of values >= 1");
  ExpectRefused("2 1 1 0 1 1", 7, "a slot may not be empty");
  ExpectRefused("2 1 1 -1 1 1", 7, "found '-1'");
  ExpectRefused("2 1 1 1.5 1 1", 7, "in slot 'ids' (2 of 3)");
  ExpectRefused("2 1 1 18446744073709551616 1", 7, "count");
  ExpectRefused("3 1 1 1 1 1 1 1", 1, "the count 2 of a dense slot, found '3'");
  ExpectRefused("2 1 1 1 7", 10, "in slot 'label' (3 of 3)");
  ExpectRefused("2 1 1 1 7", 10, "found the end of the line");
});

const Test kValues("a value that is invalid for its slot is rejected with its position", [] {
  ExpectRefused("2 1 x 1 1 1 1", 5, "a decimal number (value 2 of 2), found 'x'");
  ExpectRefused("2 1 nan 1 1 1 1", 5, "found 'nan'");
  ExpectRefused("2 1 1e39 1 1 1 1", 5, "at most 3.4e38");
  ExpectRefused("2 1 1 2 5 -6 1 1", 11, "an unsigned 64-bit number (value 2 of 2), found '-6'");
  ExpectRefused("2 1 1 1 18446744073709551616 1 1", 9, "at most 2^64 - 1");
  ExpectRefused("2 1 1 1 0x7 1 1", 9, "found '0x7'");
  ExpectRefused("2 1 1 3 5 6", 12, "found the end of the line");
  ExpectRefused("2 1 1 18446744073709551615 5 6", 31, "value 3 of 18446744073709551615");
});

const Test kTrailing("anything but blanks after the last slot is rejected", [] {
  ExpectRefused("2 1 1 1 5 1 1 8", 15, "the end of the line after 3 slots, found '8'");
  ExpectRefused(std::string("2 1 1 1 5 1 1 \x01\xff", 16), 15, "found '\\x01\\xff'");
});

const Test kTexts("a text is one token, kept byte for byte", [] {
  const auto format =
      RequireOk(MakeMultiSlot({{"line_id", ValueKind::kText, 0}, {"ids", ValueKind::kUint64, 0}}));
  ColumnBatch batch(format->columns());
  LineProblem problem;
  Require(format->Parse("1 a:\xc3\xa4 2 5 6", batch, problem), problem.what);
  Require(format->Parse("1 7 1 5", batch, problem), problem.what);
  const Column& texts = batch.columns()[0];
  ExpectEqual(std::string(texts.texts.data(), texts.texts.data() + texts.texts.size()),
              std::string("a:\xc3\xa4"
                          "7"));
  ExpectEqual(texts.offsets[1], 4);
  ExpectEqual(texts.offsets[2], 5);
  for (const char* bad : {"2 a b 1 5", "1", "1 ", "1 a"}) {
    Expect(!format->Parse(bad, batch, problem), bad);
    batch.DropUnfinished();
  }
  ExpectEqual(texts.texts.size(), 5u);
  ExpectCode(MakeMultiSlot({{"a", ValueKind::kText, 2}}).status(), Code::kInvalidArgument);
});

const Test kSpecs("slots need unique names", [] {
  ExpectCode(MakeMultiSlot({}).status(), Code::kInvalidArgument);
  ExpectCode(MakeMultiSlot({{"", ValueKind::kFloat, 0}}).status(), Code::kInvalidArgument);
  ExpectCode(MakeMultiSlot({{"a", ValueKind::kFloat, 0}, {"a", ValueKind::kUint64, 1}}).status(),
             Code::kInvalidArgument);
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
