#include "parse/criteo.h"

#include <bit>
#include <cmath>
#include <string>
#include <vector>

#include "parse/hash64.h"
#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

// A line with these fields first and the others empty.
std::string LineOf(std::vector<std::string> fields, std::size_t num_fields = 40) {
  fields.resize(num_fields);
  std::string line = fields[0];
  for (std::size_t i = 1; i < fields.size(); ++i) line += "\t" + fields[i];
  return line;
}

void ExpectRefused(const CriteoOptions& options, const std::string& line, std::size_t column,
                   const std::string& part) {
  const auto format = MakeCriteo(options);
  ColumnBatch batch(format->columns());
  LineProblem problem;
  Expect(!format->Parse(line, batch, problem), line);
  ExpectEqual(problem.column, column);
  Expect(problem.what.find(part) != std::string::npos, problem.what);
  batch.DropUnfinished();
  for (const auto& parsed : batch.columns()) {
    Expect(parsed.ids.size() == 0 && parsed.floats.size() == 0);
  }
}

const Test kHashed("counts become logarithms, categories hashes seeded by column", [] {
  CriteoOptions options;
  options.missing_count = -1.0f;
  const auto format = MakeCriteo(options);
  ColumnBatch batch(format->columns());
  LineProblem problem;
  std::vector<std::string> fields = {"1", "3", "", "-2", "5000"};
  fields.resize(40);
  fields[14] = "68fd1e64";
  fields[39] = "68fd1e64";
  Require(format->Parse(LineOf(fields) + "\r", batch, problem), problem.what);
  ExpectEqual(batch.columns()[0].floats[0], 1.0f);
  const auto& counts = batch.columns()[1].floats;
  ExpectEqual(counts.size(), 13u);
  ExpectEqual(counts[0], std::log1p(3.0f));
  ExpectEqual(counts[1], -1.0f);
  ExpectEqual(counts[2], 0.0f);
  ExpectEqual(counts[3], std::log1p(5000.0f));
  const auto& ids = batch.columns()[2].ids;
  ExpectEqual(ids.size(), 26u);
  ExpectEqual(std::bit_cast<std::uint64_t>(ids[0]), Hash64("68fd1e64", 0));
  ExpectEqual(std::bit_cast<std::uint64_t>(ids[1]), Hash64("", 1));
  ExpectEqual(std::bit_cast<std::uint64_t>(ids[25]), Hash64("68fd1e64", 25));
});

const Test kPlain("without options, values are what the file says", [] {
  const auto format = MakeCriteo({false, false, 0.0f, false});
  ColumnBatch batch(format->columns());
  LineProblem problem;
  std::vector<std::string> fields = {"-3"};
  fields.resize(39);
  fields[13] = "fFfFfFfF";
  fields[15] = "0a";
  Require(format->Parse(LineOf(fields, 39), batch, problem), problem.what);
  ExpectEqual(batch.columns().size(), 2u);
  ExpectEqual(batch.columns()[0].floats[0], -3.0f);
  ExpectEqual(batch.columns()[1].ids[0], 0xFFFFFFFFLL);
  ExpectEqual(batch.columns()[1].ids[1], kCriteoMissingId);
  ExpectEqual(batch.columns()[1].ids[2], 10);
});

const Test kRefused("a malformed field is named with its column", [] {
  const CriteoOptions hashed;
  const CriteoOptions plain{false, false, 0.0f, true};
  ExpectRefused(hashed, "", 1, "a label 0 or 1 (field 1), found the end of the line");
  ExpectRefused(hashed, LineOf({"2"}), 1, "found '2'");
  ExpectRefused(hashed, LineOf({"1", "x"}), 3, "as count 1 of 13, found 'x'");
  ExpectRefused(hashed, LineOf({"1", "1.5"}), 3, "found '1.5'");
  ExpectRefused(hashed, LineOf({"1", "9223372036854775808"}), 3, "a 64-bit integer");
  ExpectRefused(hashed, LineOf({"1", " 5"}), 3, "found a blank");
  ExpectRefused(hashed, LineOf({"1"}, 10), 11, "count 10 of 13 (a line has 40 fields");
  ExpectRefused(hashed, LineOf({"1"}, 39), 40, "category 26 of 26");
  ExpectRefused(hashed, LineOf({"1"}, 41), 41, "the end of the line after 40 fields");
  std::vector<std::string> fields = {"0"};
  fields.resize(40);
  fields[14] = "12345678g";
  ExpectRefused(plain, LineOf(fields), 16, "8 hexadecimal digits or nothing as category 1 of 26");
  fields[14] = "123g";
  ExpectRefused(plain, LineOf(fields), 16, "found '123g'");
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
