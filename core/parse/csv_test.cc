#include "parse/csv.h"

#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "parse/hash64.h"
#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

// A line: user id, unused, price, tags with | between, two counts, a text.
CsvOptions Options() {
  CsvOptions options;
  options.missing_texts = {"", "NA"};
  options.slots = {
      {{"user", ValueKind::kUint64, 1}, {}, '\0', {}, {}},
      {{"price", ValueKind::kFloat, 1}, {}, '\0', {}, -1.0f},
      {{"tags", ValueKind::kUint64, 0}, {}, '|', {}, {}},
      {{"counts", ValueKind::kFloat, 2}, {}, '\0', {}, {}},
      {{"text", ValueKind::kUint64, 1}, 7, '\0', {}, {}},
  };
  options.fields = {{"'user'", 0, 0}, {"", CsvField::kUnused, 0}, {"'price'", 1, 0},
                    {"'tags'", 2, 0}, {"'second'", 3, 1},         {"'first'", 3, 0},
                    {"'text'", 4, 0}};
  return options;
}

std::int64_t HashOf(const std::string& text, std::uint64_t seed) {
  return std::bit_cast<std::int64_t>(Hash64(text, seed));
}

void ExpectRefused(const std::string& line, std::size_t column, const std::string& part) {
  const auto format = RequireOk(MakeCsv(Options()));
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

const Test kFields("fields go to their slots in any order, unused ones are ignored", [] {
  const auto format = RequireOk(MakeCsv(Options()));
  ColumnBatch batch(format->columns());
  LineProblem problem;
  Require(format->Parse("18446744073709551615,x,0.5,3|4|-5,2,1,abc", batch, problem));
  Require(format->Parse(" 7 ,,NA,,-2e0,+1,\r", batch, problem));
  Require(
      format->Parse("8,\"a,b\"\"c\",\"1.5\",\"9\",4,3,\"say \"\"hi\"\", you\"", batch, problem));
  ExpectEqual(batch.num_records(), std::size_t{3});
  const auto& columns = batch.columns();
  ExpectEqual(columns[0].ids[0], std::int64_t{-1});
  ExpectEqual(columns[0].ids[1], std::int64_t{7});
  ExpectEqual(columns[1].floats[0], 0.5f);
  ExpectEqual(columns[1].floats[1], -1.0f);
  ExpectEqual(columns[1].floats[2], 1.5f);
  ExpectEqual(columns[2].offsets[1], std::int64_t{3});
  ExpectEqual(columns[2].offsets[2], std::int64_t{3});
  ExpectEqual(columns[2].ids[2], std::int64_t{-5});
  ExpectEqual(columns[2].ids[3], std::int64_t{9});
  ExpectEqual(columns[3].floats[0], 1.0f);
  ExpectEqual(columns[3].floats[1], 2.0f);
  ExpectEqual(columns[4].ids[0], HashOf("abc", 7));
  ExpectEqual(columns[4].ids[1], HashOf("", 7));
  ExpectEqual(columns[4].ids[2], HashOf("say \"hi\", you", 7));
});

const Test kLists("lists fill a width, hash each value with the seed, or are missing entirely", [] {
  CsvOptions options;
  options.separator = '\t';
  options.quote = '\0';
  options.missing_texts = {""};
  options.slots = {{{"two", ValueKind::kFloat, 2}, {}, ' ', {}, 9.0f},
                   {{"words", ValueKind::kUint64, 0}, 3, ' ', 5, {}}};
  options.fields = {{"'two'", 0, 0}, {"'words'", 1, 0}};
  const auto format = RequireOk(MakeCsv(options));
  ColumnBatch batch(format->columns());
  LineProblem problem;
  Require(format->Parse("1 2\ta \"b\"", batch, problem), problem.what);
  Require(format->Parse("\t", batch, problem), problem.what);
  Require(!format->Parse("1 2 3\ta", batch, problem));
  Expect(problem.what.find("2 values, found more") != std::string::npos, problem.what);
  batch.DropUnfinished();
  Require(!format->Parse("1\ta", batch, problem));
  Expect(problem.what.find("2 values, found 1") != std::string::npos, problem.what);
  batch.DropUnfinished();
  ExpectEqual(batch.num_records(), std::size_t{2});
  const auto& columns = batch.columns();
  ExpectEqual(columns[0].floats[3], 9.0f);
  ExpectEqual(columns[1].ids[0], HashOf("a", 3));
  ExpectEqual(columns[1].ids[1], HashOf("\"b\"", 3));
  ExpectEqual(columns[1].ids[2], std::int64_t{5});
});

const Test kRefused("a malformed line is rejected with column and reason", [] {
  ExpectRefused("x,,1,1,1,1,a", 1, "in column 'user' (1 of 7) a whole number, found 'x'");
  ExpectRefused("1.5,,1,1,1,1,a", 1, "a whole number, found '1.5'");
  ExpectRefused("18446744073709551616,,1,1,1,1,a", 1, "from -2^63 to 2^64 - 1");
  ExpectRefused("-9223372036854775809,,1,1,1,1,a", 1, "from -2^63 to 2^64 - 1");
  ExpectRefused("1,,1e39,1,1,1,a", 4, "in column 'price' (3 of 7) a decimal number of at most");
  ExpectRefused("1,,nan,1,1,1,a", 4, "a decimal number, found 'nan'");
  ExpectRefused("1,,1,1||2,1,1,a", 8, "a whole number, found nothing");
  ExpectRefused("1,,1,1,,1,a", 8, "in column 'second' (5 of 7) a decimal number, found nothing");
  ExpectRefused(",,1,1,1,1,a", 1, "found nothing");
  ExpectRefused("1,,1,1,1,1", 11, "expected column 'text' (7 of 7), found the end of the line");
  ExpectRefused("1", 2, "expected column 2 of 7, found the end of the line");
  ExpectRefused("1,,1,1,1,1,a,b", 13, "the end of the line after 7 columns");
  ExpectRefused("1,,1,1,1,1,\"a", 12, "a closing quote in this line");
  ExpectRefused("1,,1,1,1,1,\"a\"b", 15, "a separator after the closing quote");
  ExpectRefused("1,,1,\"1|\"\"\",1,1,a", 7, "in column 'tags' (4 of 7) a whole number, found '\"'");
});

const Test kOptions("inconsistent options are rejected", [] {
  auto options = Options();
  options.fields[1] = {"again", 0, 0};
  Expect(MakeCsv(options).status().message().find("does not have its own index") !=
         std::string::npos);
  options = Options();
  options.fields.pop_back();
  Expect(MakeCsv(options).status().message().find("'text' has fewer") != std::string::npos);
  options = Options();
  options.slots[2].list_separator = ',';
  Expect(MakeCsv(options).status().message().find("a different separator") != std::string::npos);
  options = Options();
  options.quote = ',';
  Expect(!MakeCsv(options).ok());
  options = Options();
  options.slots[1].column.name = "user";
  Expect(MakeCsv(options).status().message().find("two slots") != std::string::npos);
  Expect(!MakeCsv({}).ok());
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
