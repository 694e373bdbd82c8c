// Hundreds of thousands of damaged CSV lines: nothing breaks, and a simple second parser agrees on
// the validity and content of every line.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "parse/csv.h"
#include "parse/hash64.h"
#include "testing/check.h"
#include "testing/parsed_lines.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

// Fields: id, unused, number that may be missing, tags, pair with + between, text.
CsvOptions Options() {
  CsvOptions options;
  options.missing_texts = {"", "NA"};
  options.slots = {{{"id", ValueKind::kUint64, 1}, {}, '\0', {}, {}},
                   {{"number", ValueKind::kFloat, 1}, {}, '\0', {}, 0.25f},
                   {{"tags", ValueKind::kUint64, 0}, 5, '|', {}, {}},
                   {{"pair", ValueKind::kFloat, 2}, {}, ';', {}, {}},
                   {{"text", ValueKind::kUint64, 1}, 6, '\0', {}, {}}};
  options.fields = {{"'id'", 0, 0},   {"", CsvField::kUnused, 0}, {"'number'", 1, 0},
                    {"'tags'", 2, 0}, {"'pair'", 3, 0},           {"'text'", 4, 0}};
  return options;
}

// Deterministic lines and damage. Not thread-safe.
class LineMaker {
 public:
  explicit LineMaker(std::uint64_t seed) : random_(seed) {}

  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }

  std::string Line() {
    std::string line = Quoted(std::to_string(random_() >> Below(64))) + "," + Quoted(Word()) + ",";
    if (Below(4) != 0) line += Number();
    line += ",";
    std::string tags;
    for (std::uint64_t n = Below(4); n > 0; --n) tags += Word() + (n > 1 ? "|" : "");
    return line + Quoted(tags) + "," + Quoted(Number() + ";" + Number()) + "," + Quoted(Word());
  }

  std::string Damaged(std::string line) {
    for (std::uint64_t times = Below(3); times > 0; --times) Damage(line);
    for (char& c : line) c = c == '\n' ? ' ' : c;
    return line;
  }

 private:
  std::string Word() {
    const char* const words[] = {"a",   "",   "NA",       "say \"hi\"",
                                 "x,y", "\"", "\xc3\xa9", "longer word"};
    return words[Below(8)];
  }
  std::string Number() {
    return std::to_string((static_cast<double>(Below(2'000'001)) - 1e6) / 997.0);
  }
  // In quotes where required, and occasionally where not.
  std::string Quoted(const std::string& text) {
    if (text.find_first_of(",\"") == std::string::npos && Below(3) != 0) return text;
    std::string quoted = "\"";
    for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
    return quoted + "\"";
  }
  void Damage(std::string& line) {
    static const std::vector<std::string> kPieces = {
        "\"", "\"\"", ",",  "|",   ";",  " ",    "\r",
        "-",  "1e39", "NA", "nan", "99", "\xff", std::string(1, '\0'),
        "+",  "x"};
    switch (Below(6)) {
      case 0:
        if (!line.empty()) line[Below(line.size())] = static_cast<char>(random_());
        return;
      case 1:
        if (!line.empty()) line.erase(Below(line.size()), 1 + Below(3));
        return;
      case 2:
        line.insert(Below(line.size() + 1), kPieces[Below(kPieces.size())]);
        return;
      case 3:
        line.resize(Below(line.size() + 1));
        return;
      case 4:
        line += kPieces[Below(kPieces.size())];
        return;
      default:
        if (Below(50) == 0) line.append(kFuzzLineBytes, '7');
    }
  }

  std::mt19937_64 random_;
};

std::string Stripped(const std::string& text) {
  const std::size_t first = text.find_first_not_of(' ');
  return first == std::string::npos ? ""
                                    : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

// The fields of a line by a state machine, byte by byte.
bool PlainSplit(std::string line, std::vector<std::string>& fields) {
  if (!line.empty() && line.back() == '\r') line.pop_back();
  fields.assign(1, "");
  enum { kBegin, kPlain, kQuoted, kAfterQuote, kClosed } state = kBegin;
  for (const char c : line) {
    if (state == kQuoted) {
      if (c == '"') {
        state = kAfterQuote;
      } else {
        fields.back() += c;
      }
    } else if (c == ',') {
      if (state == kPlain) fields.back() = Stripped(fields.back());
      fields.emplace_back();
      state = kBegin;
    } else if (c == ' ' && state != kPlain) {
      if (state == kAfterQuote) state = kClosed;
    } else if (state == kAfterQuote || state == kClosed) {
      if (c != '"' || state == kClosed) return false;
      fields.back() += c;
      state = kQuoted;
    } else if (state == kBegin && c == '"') {
      state = kQuoted;
    } else {
      fields.back() += c;
      state = kPlain;
    }
  }
  if (state == kPlain) fields.back() = Stripped(fields.back());
  return state != kQuoted;
}

std::vector<std::string> PlainList(const std::string& text, char separator) {
  std::vector<std::string> items(1);
  for (const char c : text) {
    if (c == separator) {
      items.emplace_back();
    } else {
      items.back() += c;
    }
  }
  return items;
}

bool OnlyOf(const std::string& text, const std::string& allowed) {
  return !text.empty() && text.find_first_not_of(allowed) == std::string::npos;
}

bool PlainId(const std::string& field, std::uint64_t& bits) {
  const std::string text = Stripped(field);
  const bool negative = !text.empty() && text[0] == '-';
  if (!OnlyOf(text.substr(negative ? 1 : 0), "0123456789")) return false;
  errno = 0;
  bits = negative ? static_cast<std::uint64_t>(std::strtoll(text.c_str(), nullptr, 10))
                  : std::strtoull(text.c_str(), nullptr, 10);
  return errno == 0;
}

bool PlainFloat(const std::string& field, std::uint64_t& bits) {
  const std::string text = Stripped(field);
  if (!OnlyOf(text, "0123456789+-.eE")) return false;
  char* end = nullptr;
  const float value = std::strtof(text.c_str(), &end);
  bits = std::bit_cast<std::uint32_t>(value);
  return end == text.c_str() + text.size() && std::isfinite(value);
}

bool PlainRecord(const std::string& line, RecordBits& record) {
  std::vector<std::string> fields;
  if (!PlainSplit(line, fields) || fields.size() != 6) return false;
  record.assign(5, {});
  std::uint64_t bits = 0;
  if (!PlainId(fields[0], bits)) return false;
  record[0] = {bits};
  if (fields[2] == "" || fields[2] == "NA") {
    bits = std::bit_cast<std::uint32_t>(0.25f);
  } else if (!PlainFloat(fields[2], bits)) {
    return false;
  }
  record[1] = {bits};
  if (fields[3] != "" && fields[3] != "NA") {
    for (const auto& tag : PlainList(fields[3], '|')) record[2].push_back(Hash64(tag, 5));
  }
  for (const auto& item : PlainList(fields[4], ';')) {
    if (!PlainFloat(item, bits)) return false;
    record[3].push_back(bits);
  }
  record[4] = {Hash64(fields[5], 6)};
  return record[3].size() == 2;
}

const Test kCsv("150,000 damaged CSV lines: a simple parser agrees on each", [] {
  const auto format = RequireOk(MakeCsv(Options()));
  LineMaker maker(13);
  std::size_t sound = 0;
  for (int first = 0; first < kFuzzLines; first += kFuzzLinesPerFile) {
    std::vector<std::string> lines;
    for (int i = 0; i < kFuzzLinesPerFile; ++i) lines.push_back(maker.Damaged(maker.Line()));
    const auto below = [&](std::uint64_t bound) { return maker.Below(bound); };
    ColumnBatch batch(format->columns());
    CompareParsers(format, lines, true, below, PlainRecord, batch);
    sound += batch.num_records();
  }
  Expect(sound > kFuzzLines / 4 && sound < kFuzzLines * 4 / 5, "valid lines: " + Show(sound));
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
