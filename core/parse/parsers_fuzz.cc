// libFuzzer entry: one input is a file in one of the formats. A parser must end, and find the same
// records and bad lines however the file is split into blocks.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parse/criteo.h"
#include "parse/csv.h"
#include "parse/multi_slot.h"
#include "parse/multi_slot_binary.h"
#include "parse/record_parser.h"
#include "testing/fuzz_seeds.h"

namespace {

using namespace sparsefleet;

constexpr std::size_t kMaxLineBytes = 256;  // small, so that inputs have longer lines

const std::vector<ColumnSpec> kSlots = {{"label", ValueKind::kUint64, 1},
                                        {"dense", ValueKind::kFloat, 2},
                                        {"ads", ValueKind::kUint64, 0},
                                        {"weights", ValueKind::kFloat, 0}};

template <typename T>
T ValueOrAbort(Result<T> result) {
  if (!result.ok()) std::abort();
  return std::move(result).value();
}

std::vector<std::shared_ptr<const RecordFormat>> Formats() {
  std::vector<ColumnSpec> with_text = kSlots;
  with_text.push_back({"line_id", ValueKind::kText, 0});
  CsvOptions csv;
  csv.missing_texts = {"", "NA"};
  csv.slots = {{{"id", ValueKind::kUint64, 1}, {}, '\0', {}, {}},
               {{"number", ValueKind::kFloat, 1}, {}, '\0', {}, 0.25f},
               {{"tags", ValueKind::kUint64, 0}, 5, '|', {}, {}},
               {{"pair", ValueKind::kFloat, 2}, {}, ';', {}, {}}};
  csv.fields = {{"'id'", 0, 0},
                {"", CsvField::kUnused, 0},
                {"'number'", 1, 0},
                {"'tags'", 2, 0},
                {"'pair'", 3, 0}};
  CsvOptions without_quotes = csv;
  without_quotes.quote = '\0';
  without_quotes.separator = '\t';
  CriteoOptions numbers;
  numbers.hash_categories = false;
  numbers.has_label = false;
  return {ValueOrAbort(MakeMultiSlot(with_text)), ValueOrAbort(MakeCsv(csv)),
          ValueOrAbort(MakeCsv(without_quotes)), MakeCriteo({}), MakeCriteo(numbers)};
}

// The values of a batch, byte for byte.
void Append(const ColumnBatch& batch, std::string& found) {
  const auto append = [&found](const auto& array) {
    if (array.size() == 0) return;
    found.append(reinterpret_cast<const char*>(array.data()), array.size() * sizeof(array[0]));
  };
  for (const Column& column : batch.columns()) {
    append(column.ids);
    append(column.floats);
    append(column.texts);
    append(column.offsets);
  }
}

// What a parser finds in `file`, given in blocks of `block_bytes`.
std::string Parsed(const std::shared_ptr<const RecordFormat>& format, std::string_view file,
                   std::size_t block_bytes, std::size_t max_records) {
  RecordParser parser(format, kMaxLineBytes);
  ColumnBatch batch(format->columns());
  std::string found;
  const auto drain = [&] {
    while (true) {
      switch (parser.Parse(batch, max_records)) {
        case ParseOutcome::kNeedBlock:
          return;
        case ParseOutcome::kBadLine:
          found += "bad " + std::to_string(parser.bad_line().line) + ":" +
                   std::to_string(parser.bad_line().problem.column) + " " +
                   parser.bad_line().problem.what + "\n";
          break;
        case ParseOutcome::kBatchFull:
          if (batch.num_records() != max_records) std::abort();
          Append(batch, found);
          batch.Restart();
          break;
      }
    }
  };
  parser.BeginFile();
  while (!file.empty()) {
    // A separate allocation, so that a read past its end is detected.
    const std::vector<char> block(file.begin(), file.begin() + std::min(block_bytes, file.size()));
    file.remove_prefix(block.size());
    parser.Feed({block.data(), block.size()});
    drain();
  }
  parser.Finish();
  drain();
  Append(batch, found);
  return found + std::to_string(parser.line()) + " lines";
}

std::string ParsedBinary(std::string_view file, std::size_t max_records) {
  ColumnBatch batch(kSlots);
  std::string found;
  while (true) {
    const auto used = ReadBinaryRecords(file, batch, max_records);
    if (batch.num_records() > max_records) std::abort();
    Append(batch, found);
    if (!used.ok()) return found + "corrupt";
    if (used.value() > file.size()) std::abort();
    if (used.value() == 0) return found + std::to_string(file.size()) + " bytes left";
    file.remove_prefix(used.value());
    batch.Restart();
  }
}

// A file of each format, in the order of Formats(), and a binary one.
std::vector<std::vector<std::byte>> Seeds() {
  const std::string slots = "1 1 2 0.5 -2e3 3 7 18446744073709551615 0 1 3.25 1 line-1\n";
  const std::string criteo = "1\t5\t110\t\t16\t\t1\t0\t14\t7\t1\t\t306\t\t" +
                             std::string("68fd1e64\t80e26c9b\t\t4cf72387");
  const std::string binary("\1\0\1\0\0\0\0\0\0\0\2\0\0\0\0?\0\0\0?\1\0abcdefgh\1\0\0\0\0?", 36);
  const std::vector<std::string> files = {slots + slots,
                                          "7,x,0.5,a|5|NA,1;2\n\"8\",,NA,\"a\"\"b\",3;4\r\n",
                                          "7\tx\t0.5\ta|5|NA\t1;2\n9\t\t1e-3\t\t3;4\n",
                                          criteo + std::string(22, '\t') + "\n",
                                          criteo + std::string(22, '\t') + "\n",
                                          binary + binary};
  std::vector<std::vector<std::byte>> seeds;
  for (std::size_t i = 0; i < files.size(); ++i) {
    seeds.push_back({static_cast<std::byte>(i), std::byte{0x27}});
    testing::AppendBytes(seeds.back(), std::as_bytes(std::span(files[i])));
  }
  return seeds;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  testing::WriteFuzzSeeds(*argc, *argv, Seeds());
  return 0;
}

// The first byte chooses the format, the second the size of blocks and batches.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto formats = Formats();
  if (size < 2) return 0;
  const std::string_view file(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::size_t pick = data[0] % (formats.size() + 1);
  const std::size_t block_bytes = 1 + data[1] % 16;
  const std::size_t max_records = 1 + data[1] / 16;
  if (pick == formats.size()) {
    ParsedBinary(file, max_records);
  } else if (Parsed(formats[pick], file, file.size(), max_records) !=
             Parsed(formats[pick], file, block_bytes, max_records)) {
    std::abort();
  }
  return 0;
}
