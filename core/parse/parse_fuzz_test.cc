// Hundreds of thousands of damaged lines: nothing breaks, and a simple second parser agrees on the
// validity and content of every line.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "parse/criteo.h"
#include "parse/hash64.h"
#include "parse/multi_slot.h"
#include "testing/check.h"
#include "testing/parsed_lines.h"

using namespace sparsefleet;
using namespace sparsefleet::testing;

namespace {

const std::vector<ColumnSpec> kSlots = {{"label", ValueKind::kUint64, 1},
                                        {"dense", ValueKind::kFloat, 3},
                                        {"ads", ValueKind::kUint64, 0},
                                        {"weights", ValueKind::kFloat, 0},
                                        {"line_id", ValueKind::kText, 0}};

// Deterministic damage. Not thread-safe.
class LineMutator {
 public:
  explicit LineMutator(std::uint64_t seed) : random_(seed) {}

  std::uint64_t Below(std::uint64_t bound) { return random_() % bound; }

  std::string MultiSlotLine() {
    std::string line = "1 " + std::to_string(Below(2)) + " 3";
    for (int i = 0; i < 3; ++i) line += " " + FloatText();
    const std::uint64_t ads = 1 + Below(4);
    line += " " + std::to_string(ads);
    for (std::uint64_t i = 0; i < ads; ++i) line += " " + std::to_string(random_() >> Below(64));
    const std::uint64_t weights = 1 + Below(3);
    line += " " + std::to_string(weights);
    for (std::uint64_t i = 0; i < weights; ++i) line += " " + FloatText();
    return line + " 1 id:" + std::to_string(Below(1000));
  }

  std::string CriteoLine() {
    std::string line = std::to_string(Below(2));
    for (std::size_t i = 0; i < kCriteoCounts; ++i) {
      line += "\t";
      if (Below(4) != 0) line += std::to_string(static_cast<std::int64_t>(Below(10'000)) - 3);
    }
    for (std::size_t i = 0; i < kCriteoCategories; ++i) {
      line += "\t";
      if (Below(8) != 0) {
        char text[16];
        std::snprintf(text, sizeof(text), "%08x", static_cast<unsigned>(random_()));
        line += text;
      }
    }
    return line;
  }

  // Damages one line in two or three. Adds no LF: the oracle takes lines as they are.
  std::string Damaged(std::string line) {
    for (std::uint64_t times = Below(3); times > 0; --times) Damage(line);
    for (char& c : line) c = c == '\n' ? ' ' : c;
    return line;
  }

 private:
  std::string FloatText() {
    char text[64];
    const char* const forms[] = {"%.6f", "%g", "%.9e", "%.0f"};
    std::snprintf(text, sizeof(text), forms[Below(4)],
                  (static_cast<double>(Below(2'000'001)) - 1e6) / 997.0);
    return text;
  }

  void Damage(std::string& line) {
    static const std::vector<std::string> kPieces = {" ",
                                                     "\t",
                                                     "\r",
                                                     "-",
                                                     "+",
                                                     ".",
                                                     "e",
                                                     "0",
                                                     "18446744073709551616",
                                                     "1e39",
                                                     "1e-50",
                                                     "99",
                                                     "nan",
                                                     "inf",
                                                     "0x",
                                                     " -1 ",
                                                     "1e999",
                                                     "  ",
                                                     "\xff",
                                                     std::string(1, '\0'),
                                                     "1_0"};
    switch (Below(7)) {
      case 0:
        if (!line.empty()) line[Below(line.size())] = static_cast<char>(random_());
        return;
      case 1:
        if (!line.empty()) line.erase(Below(line.size()), 1 + Below(4));
        return;
      case 2:
        line.insert(Below(line.size() + 1), kPieces[Below(kPieces.size())]);
        return;
      case 3:
        line.resize(Below(line.size() + 1));
        return;
      case 4:
        if (!line.empty()) line[Below(line.size())] = static_cast<char>('0' + Below(10));
        return;
      case 5:
        line += kPieces[Below(kPieces.size())];
        return;
      default:
        if (Below(50) == 0) line.append(kFuzzLineBytes, static_cast<char>('0' + Below(10)));
    }
  }

  std::mt19937_64 random_;
};

std::vector<std::string> Tokens(const std::string& line) {
  std::vector<std::string> tokens(1);
  for (const char c : line) {
    if (c == ' ' || c == '\t' || c == '\r') {
      if (!tokens.back().empty()) tokens.emplace_back();
    } else {
      tokens.back() += c;
    }
  }
  if (tokens.back().empty()) tokens.pop_back();
  return tokens;
}

bool OnlyOf(const std::string& text, const char* allowed) {
  return !text.empty() && text.find_first_not_of(allowed) == std::string::npos &&
         text.find('\0') == std::string::npos;
}

bool PlainUint(const std::string& text, std::uint64_t& value) {
  if (!OnlyOf(text, "0123456789")) return false;
  errno = 0;
  value = std::strtoull(text.c_str(), nullptr, 10);
  return errno == 0;
}

bool PlainFloat(const std::string& text, float& value) {
  if (!OnlyOf(text, "0123456789+-.eE")) return false;
  char* end = nullptr;
  value = std::strtof(text.c_str(), &end);
  return end == text.c_str() + text.size() && std::isfinite(value);
}

// One record, slot by slot, as bits. False if the line is malformed.
bool PlainMultiSlot(const std::string& line, RecordBits& record) {
  const auto tokens = Tokens(line);
  std::size_t at = 0;
  record.assign(kSlots.size(), {});
  for (std::size_t i = 0; i < kSlots.size(); ++i) {
    std::uint64_t count = 0;
    if (at == tokens.size() || !PlainUint(tokens[at++], count) || count == 0) return false;
    if (kSlots[i].width != 0 && count != kSlots[i].width) return false;
    if (count > tokens.size() - at) return false;
    if (kSlots[i].kind == ValueKind::kText) {
      if (count != 1) return false;
      for (const char c : tokens[at]) record[i].push_back(static_cast<unsigned char>(c));
      ++at;
      continue;
    }
    for (; count > 0; --count) {
      std::string text = tokens[at++];
      std::uint64_t bits = 0;
      float number = 0;
      if (kSlots[i].kind == ValueKind::kFloat) {
        if (!PlainFloat(text, number)) return false;
        bits = std::bit_cast<std::uint32_t>(number);
      } else {
        if (text[0] == '+') text.erase(0, 1);
        if (!PlainUint(text, bits)) return false;
      }
      record[i].push_back(bits);
    }
  }
  return at == tokens.size();
}

// Label, counts and categories as bits; texts are hashed and counts become logarithms, or not.
// False if the line is malformed.
bool PlainCriteo(std::string line, bool hashed, RecordBits& record) {
  if (line.ends_with('\r')) line.pop_back();
  std::vector<std::string> fields(1);
  for (const char c : line) {
    if (c == '\t') {
      fields.emplace_back();
    } else {
      fields.back() += c;
    }
  }
  record.assign(3, {});
  if (fields.size() != 40 || (fields[0] != "0" && fields[0] != "1")) return false;
  const auto bits = [](float value) { return std::uint64_t{std::bit_cast<std::uint32_t>(value)}; };
  record[0].push_back(bits(fields[0] == "1" ? 1.0f : 0.0f));
  for (std::size_t i = 1; i <= 13; ++i) {
    std::string digits = fields[i];
    if (digits.starts_with('-') || digits.starts_with('+')) digits.erase(0, 1);
    if (!fields[i].empty() && !OnlyOf(digits, "0123456789")) return false;
    errno = 0;
    const std::int64_t count = std::strtoll(fields[i].c_str(), nullptr, 10);
    if (errno != 0) return false;
    const double log = count < 0 ? 0.0 : std::log(static_cast<double>(count) + 1.0);
    record[1].push_back(bits(static_cast<float>(hashed ? log : static_cast<double>(count))));
  }
  for (std::size_t i = 14; i < 40; ++i) {
    const std::string& text = fields[i];
    if (hashed) {
      record[2].push_back(Hash64(text, i - 14));
      continue;
    }
    if (!text.empty() && (text.size() > 8 || !OnlyOf(text, "0123456789abcdefABCDEF"))) return false;
    record[2].push_back(text.empty() ? UINT64_MAX : std::strtoull(text.c_str(), nullptr, 16));
  }
  return true;
}

void CheckShape(const ColumnBatch& batch) {
  for (const auto& column : batch.columns()) {
    const std::size_t size = column.size();
    if (column.spec.width != 0) {
      ExpectEqual(size, batch.num_records() * column.spec.width);
      continue;
    }
    ExpectEqual(column.offsets.size(), batch.num_records() + 1);
    for (std::size_t i = 0; i < batch.num_records(); ++i) {
      Require(column.offsets[i] < column.offsets[i + 1]);
    }
    ExpectEqual(static_cast<std::size_t>(column.offsets[batch.num_records()]), size);
  }
}

// Compares the format with `second` on a file that may lack its last LF; returns the valid lines.
std::size_t NumSound(const std::shared_ptr<const RecordFormat>& format,
                     const std::vector<std::string>& lines, LineMutator& mutator,
                     const SecondParser& second) {
  const bool ends_with_lf = mutator.Below(2) != 0 || lines.back().empty();
  const auto below = [&](std::uint64_t bound) { return mutator.Below(bound); };
  ColumnBatch batch(format->columns());
  CompareParsers(format, lines, ends_with_lf, below, second, batch);
  CheckShape(batch);
  return batch.num_records();
}

const Test kMultiSlot("150,000 damaged MultiSlot lines: a simple parser agrees on each", [] {
  const auto format = RequireOk(MakeMultiSlot(kSlots));
  LineMutator mutator(11);
  std::size_t sound = 0;
  for (int first = 0; first < kFuzzLines; first += kFuzzLinesPerFile) {
    std::vector<std::string> lines;
    for (int i = 0; i < kFuzzLinesPerFile; ++i) {
      lines.push_back(mutator.Damaged(mutator.MultiSlotLine()));
    }
    sound += NumSound(format, lines, mutator, PlainMultiSlot);
  }
  Expect(sound > kFuzzLines / 4 && sound < kFuzzLines * 3 / 4, "valid lines: " + Show(sound));
});

const Test kCriteo("150,000 damaged Criteo lines: a simple parser agrees on each", [] {
  LineMutator mutator(12);
  std::size_t sound = 0;
  for (int first = 0; first < kFuzzLines; first += kFuzzLinesPerFile) {
    const bool hashed = first % (2 * kFuzzLinesPerFile) == 0;
    const auto format = MakeCriteo({hashed, hashed, 0.0f, true});
    std::vector<std::string> lines;
    for (int i = 0; i < kFuzzLinesPerFile; ++i) {
      lines.push_back(mutator.Damaged(mutator.CriteoLine()));
    }
    sound += NumSound(format, lines, mutator, [&](const std::string& line, RecordBits& record) {
      return PlainCriteo(line, hashed, record);
    });
  }
  Expect(sound > kFuzzLines / 4 && sound < kFuzzLines * 9 / 10, "valid lines: " + Show(sound));
});

}  // namespace

int main(int argc, char** argv) { return RunTests(argc, argv); }
