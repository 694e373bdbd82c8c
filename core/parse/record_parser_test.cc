#include "parse/record_parser.h"

#include <string>
#include <vector>

#include "parse/multi_slot.h"
#include "testing/check.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

constexpr std::size_t kLongLine = 64;

RecordParser OneSlot() {
  return RecordParser(RequireOk(MakeMultiSlot({{"ids", ValueKind::kUint64, 0}})), kLongLine);
}

struct Parsed {
  std::vector<std::size_t> batches;  // records in each
  std::vector<std::int64_t> ids;
  std::vector<std::uint64_t> bad;  // line numbers
  std::vector<std::string> bad_text;
};

void Drain(RecordParser& parser, ColumnBatch& batch, std::size_t size, Parsed& out) {
  for (;;) {
    const ParseOutcome outcome = parser.Parse(batch, size);
    if (outcome == ParseOutcome::kNeedBlock) return;
    if (outcome == ParseOutcome::kBadLine) {
      out.bad.push_back(parser.bad_line().line);
      out.bad_text.emplace_back(parser.bad_line().text);
      continue;
    }
    out.batches.push_back(batch.num_records());
    const auto& ids = batch.columns()[0].ids;
    out.ids.insert(out.ids.end(), ids.data(), ids.data() + ids.size());
    batch.Restart();
  }
}

// Parses the files in blocks of `block` bytes into batches of `size`; the last may be short.
Parsed ParseAll(const std::vector<std::string>& files, std::size_t block, std::size_t size) {
  RecordParser parser = OneSlot();
  ColumnBatch batch({{"ids", ValueKind::kUint64, 0}});
  Parsed out;
  for (const auto& file : files) {
    parser.BeginFile();
    for (std::size_t at = 0; at < file.size(); at += block) {
      const std::string piece = file.substr(at, block);  // gone before the next
      parser.Feed(piece);
      Drain(parser, batch, size, out);
    }
    parser.Finish();
    Drain(parser, batch, size, out);
  }
  const auto& ids = batch.columns()[0].ids;
  out.ids.insert(out.ids.end(), ids.data(), ids.data() + ids.size());
  if (batch.num_records() > 0) out.batches.push_back(batch.num_records());
  return out;
}

const Test kBlocks("records are the same however the bytes are split into blocks", [] {
  const std::vector<std::string> files = {"1 10\n2 20 21\n1 30\n", "", "1 40\n1 50"};
  for (std::size_t block = 1; block < 20; ++block) {
    const Parsed parsed = ParseAll(files, block, 2);
    Expect(parsed.ids == std::vector<std::int64_t>{10, 20, 21, 30, 40, 50});
    Expect(parsed.batches == std::vector<std::size_t>{2, 2, 1}, "batches span files");
    Expect(parsed.bad.empty());
  }
});

const Test kBad("a bad line is named by its number and skipped, the rest is kept", [] {
  const std::vector<std::string> files = {"1 10\n1 x\n\n1 20\n", "1 30\n1 y"};
  for (std::size_t block = 1; block < 20; ++block) {
    const Parsed parsed = ParseAll(files, block, 100);
    Expect(parsed.ids == std::vector<std::int64_t>{10, 20, 30});
    Expect(parsed.bad == std::vector<std::uint64_t>{2, 3, 2});
    Expect(parsed.bad_text == std::vector<std::string>{"1 x", "", "1 y"});
  }
});

const Test kLong("an endless line is one bad line and costs no memory", [] {
  const std::string endless(10 * kLongLine, '1');
  for (const std::size_t block : {std::size_t{7}, std::size_t{100}, std::size_t{10'000}}) {
    Parsed parsed = ParseAll({"1 10\n" + endless + "\n1 20\n"}, block, 100);
    Expect(parsed.ids == std::vector<std::int64_t>{10, 20});
    Expect(parsed.bad == std::vector<std::uint64_t>{2});
    parsed = ParseAll({"1 10\n" + endless, "1 30\n"}, block, 100);
    Expect(parsed.ids == std::vector<std::int64_t>{10, 30});
    Expect(parsed.bad == std::vector<std::uint64_t>{2});
  }
});

const Test kSkip("lines that are skipped are counted, good, bad or endless", [] {
  const std::string file =
      "1 10\nnonsense\n" + std::string(3 * kLongLine, '1') + "\n1 20\n1 x\n1 30";
  for (const std::size_t block : {std::size_t{1}, std::size_t{50}, std::size_t{1000}}) {
    RecordParser parser = OneSlot();
    ColumnBatch batch({{"ids", ValueKind::kUint64, 0}});
    Parsed out;
    parser.BeginFile(4);
    for (std::size_t at = 0; at < file.size(); at += block) {
      const std::string piece = file.substr(at, block);
      parser.Feed(piece);
      Drain(parser, batch, 100, out);
    }
    parser.Finish();
    Drain(parser, batch, 100, out);
    Expect(out.bad == std::vector<std::uint64_t>{5});
    ExpectEqual(batch.num_records(), 1u);
    ExpectEqual(batch.columns()[0].ids[0], 30);
    ExpectEqual(parser.line(), 6u);
  }
});

const Test kShare("each line belongs to one share, and a bad line to one as well", [] {
  const std::string file =
      "1 10\n1 11\n1 x\n" + std::string(3 * kLongLine, '1') + "\n1 14\n1 15\n1 16\n1 y\n1 18";
  for (const std::size_t block : {std::size_t{1}, std::size_t{50}, std::size_t{1000}}) {
    for (const std::uint64_t index : {0, 1, 2}) {
      RecordParser parser = OneSlot();
      ColumnBatch batch({{"ids", ValueKind::kUint64, 0}});
      Parsed out;
      parser.BeginFile(0, {index, 3});
      for (std::size_t at = 0; at < file.size(); at += block) {
        const std::string piece = file.substr(at, block);
        parser.Feed(piece);
        Drain(parser, batch, 100, out);
      }
      parser.Finish();
      Drain(parser, batch, 100, out);
      const auto& found = batch.columns()[0].ids;
      out.ids.assign(found.data(), found.data() + found.size());
      ExpectEqual(parser.line(), 9u);
      const std::vector<std::vector<std::int64_t>> wanted = {{10, 16}, {11, 14}, {15, 18}};
      const std::vector<std::vector<std::uint64_t>> refused = {{4}, {8}, {3}};
      Expect(out.ids == wanted[index] && out.bad == refused[index]);
    }
  }
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
