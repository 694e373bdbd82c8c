#include "parse/csv.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "parse/hash64.h"
#include "parse/number.h"

namespace sparsefleet {
namespace {

// A stray quote in a file without quoting is the likely reason: say what to do about it.
constexpr const char* kNoClosingQuote =
    "a closing quote in this line (a field cannot contain a line break; if quotes are ordinary "
    "characters "
    "in this file, read it with quote=\"\")";
constexpr const char* kTextAfterQuote =
    "a separator after the closing quote (if quotes are ordinary characters in this file, read it "
    "with quote=\"\")";

// One field of a line.
struct FieldText {
  std::string_view text;  // without quotes
  const char* at;         // its start in the line
  bool is_copy = false;   // text is not in the line, because it had doubled quotes
};

std::string Found(std::string_view text) {
  return text.empty() ? "nothing" : FoundAt(text.data(), text.data() + text.size());
}

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Iterates over the fields of a line.
class Fields {
 public:
  Fields(std::string_view line, char separator, char quote)
      : at_(line.data()), end_(line.data() + line.size()), separator_(separator), quote_(quote) {
    if (at_ != end_ && end_[-1] == '\r') --end_;
  }

  // REQUIRES: !ended(). Returns null, or what was expected at at() instead. `copy` holds a text
  // that had to be changed.
  const char* Next(FieldText& field, std::string& copy) {
    SkipBlanks();
    if (quote_ != '\0' && at_ != end_ && *at_ == quote_) return NextQuoted(field, copy);
    const char* const stop = Find(at_, separator_);
    const std::string_view text(at_, static_cast<std::size_t>(stop - at_));
    field = {separator_ == ' ' ? text : Trimmed(text), at_};
    MoveTo(stop);
    return nullptr;
  }

  bool ended() const { return ended_; }
  const char* at() const { return at_; }

 private:
  // The position of the next `c`, or the end.
  const char* Find(const char* from, char c) const {
    const auto* found = static_cast<const char*>(
        from == end_ ? nullptr : std::memchr(from, c, static_cast<std::size_t>(end_ - from)));
    return found == nullptr ? end_ : found;
  }

  void SkipBlanks() {
    while (separator_ != ' ' && at_ != end_ && *at_ == ' ') ++at_;
  }

  void MoveTo(const char* stop) {
    ended_ = stop == end_;
    at_ = ended_ ? end_ : stop + 1;
  }

  const char* NextQuoted(FieldText& field, std::string& copy) {
    const char* const begin = at_ + 1;
    const char* close = Find(begin, quote_);
    if (close != end_ && close + 1 != end_ && close[1] == quote_) {
      copy.clear();
      const char* from = begin;
      while (close != end_ && close + 1 != end_ && close[1] == quote_) {
        copy.append(from, close + 1);
        from = close + 2;
        close = Find(from, quote_);
      }
      copy.append(from, close);
      field = {copy, begin, true};
    } else {
      field = {{begin, static_cast<std::size_t>(close - begin)}, begin};
    }
    if (close == end_) return kNoClosingQuote;
    at_ = close + 1;
    SkipBlanks();
    if (at_ != end_ && *at_ != separator_) return kTextAfterQuote;
    MoveTo(at_);
    return nullptr;
  }

  const char* at_;
  const char* end_;
  const char separator_;
  const char quote_;
  bool ended_ = false;
};

class Csv final : public RecordFormat {
 public:
  explicit Csv(CsvOptions options) : options_(std::move(options)) {
    for (const auto& slot : options_.slots) columns_.push_back(slot.column);
    for (const auto& text : options_.missing_texts) {
      longest_missing_ = std::max(longest_missing_, text.size());
    }
  }

  const std::vector<ColumnSpec>& columns() const override { return columns_; }

  bool Parse(std::string_view line, ColumnBatch& batch, LineProblem& problem) const override {
    for (auto& column : batch.columns()) {
      if (column.spec.kind == ValueKind::kFloat) {
        column.floats.Extend(column.spec.width);
      } else {
        column.ids.Extend(column.spec.width);
      }
    }
    Fields fields(line, options_.separator, options_.quote);
    FieldText text;
    std::string copy;
    for (std::size_t i = 0; i < options_.fields.size(); ++i) {
      if (fields.ended()) {
        problem = ProblemAt(line, fields.at(), "column " + NameOf(i));
        return false;
      }
      if (const char* wanted = fields.Next(text, copy); wanted != nullptr) {
        problem = ProblemAt(line, fields.at(), "in column " + NameOf(i) + " " + wanted);
        return false;
      }
      const CsvField& field = options_.fields[i];
      if (field.slot == CsvField::kUnused) continue;
      Column& column = batch.columns()[field.slot];
      const bool parsed = column.spec.kind == ValueKind::kFloat
                              ? ParseField(i, line, text, column.floats, problem)
                              : ParseField(i, line, text, column.ids, problem);
      if (!parsed) return false;
    }
    if (!fields.ended()) {
      problem = ProblemAt(
          line, fields.at() - 1,
          "the end of the line after " + std::to_string(options_.fields.size()) + " columns");
      return false;
    }
    for (auto& column : batch.columns()) {
      (column.spec.kind == ValueKind::kFloat) ? column.floats.Commit(column.spec.width)
                                              : column.ids.Commit(column.spec.width);
    }
    batch.EndRecord();
    return true;
  }

 private:
  template <typename T>
  bool ParseField(std::size_t i, std::string_view line, const FieldText& field,
                  GrowingArray<T>& values, LineProblem& problem) const {
    const CsvField& to = options_.fields[i];
    const CsvSlot& slot = options_.slots[to.slot];
    const std::uint32_t width = slot.column.width;
    T value{};
    if (slot.list_separator != '\0') return ParseList(i, line, field, values, problem);
    if (width == 0 && IsMissing(field.text) && !MissingOf(slot, value)) return true;
    if (!ParseValue(i, line, field.text, field.at, value, problem)) return false;
    if (width == 0) {
      values.Append(value);
    } else {
      values.data()[values.size() + to.index] = value;
    }
    return true;
  }

  template <typename T>
  bool ParseList(std::size_t i, std::string_view line, const FieldText& field,
                 GrowingArray<T>& values, LineProblem& problem) const {
    const CsvSlot& slot = options_.slots[options_.fields[i].slot];
    const std::uint32_t width = slot.column.width;
    T value{};
    if (IsMissing(field.text)) {
      const bool filled = MissingOf(slot, value);
      if (width == 0) {
        if (filled) values.Append(value);
        return true;
      }
      if (filled) {
        std::fill_n(values.data() + values.size(), width, value);
        return true;
      }
    }
    std::string_view rest = field.text;
    std::size_t count = 0;
    for (bool more = true; more; ++count) {
      if (width != 0 && count == width) return RefuseCount(i, line, field, "more", problem);
      const std::size_t size = std::min(rest.find(slot.list_separator), rest.size());
      const std::string_view item = rest.substr(0, size);
      const char* const at = field.is_copy ? field.at : item.data();
      if (!ParseValue(i, line, item, at, value, problem)) return false;
      if (width == 0) {
        values.Append(value);
      } else {
        values.data()[values.size() + count] = value;
      }
      more = size < rest.size();
      rest.remove_prefix(more ? size + 1 : size);
    }
    if (width == 0 || count == width) return true;
    return RefuseCount(i, line, field, std::to_string(count), problem);
  }

  bool RefuseCount(std::size_t i, std::string_view line, const FieldText& field,
                   const std::string& found, LineProblem& problem) const {
    const std::uint32_t width = options_.slots[options_.fields[i].slot].column.width;
    problem = Problem(i, line, field.at, std::to_string(width) + " values", found);
    return false;
  }

  template <typename T>
  bool ParseValue(std::size_t i, std::string_view line, std::string_view text, const char* at,
                  T& value, LineProblem& problem) const {
    const CsvSlot& slot = options_.slots[options_.fields[i].slot];
    if (IsMissing(text) && MissingOf(slot, value)) return true;
    if constexpr (std::is_same_v<T, std::int64_t>) {
      if (slot.hash_seed) {
        value =
            std::bit_cast<std::int64_t>(Hash64(text, *slot.hash_seed + options_.fields[i].index));
        return true;
      }
    }
    const NumberFault fault = ReadNumber(Trimmed(text), value);
    if (fault == NumberFault::kNone) return true;
    const std::string_view shown = Trimmed(text);
    problem = Problem(i, line, at, Wanted<T>(fault), Found(shown.empty() ? text : shown));
    return false;
  }

  static NumberFault ReadNumber(std::string_view text, float& value) {
    const char* at = text.data();
    const char* const end = at + text.size();
    const NumberFault fault = ReadFloat(at, end, value);
    return fault == NumberFault::kNone && at != end ? NumberFault::kNotANumber : fault;
  }

  static NumberFault ReadNumber(std::string_view text, std::int64_t& value) {
    const char* at = text.data();
    const char* const end = at + text.size();
    NumberFault fault;
    if (!text.empty() && text.front() == '-') {
      fault = ReadInt64(at, end, value);
    } else {
      std::uint64_t bits = 0;
      fault = ReadUint64(at, end, bits);
      value = std::bit_cast<std::int64_t>(bits);
    }
    return fault == NumberFault::kNone && at != end ? NumberFault::kNotANumber : fault;
  }

  template <typename T>
  static std::string Wanted(NumberFault fault) {
    if (std::is_same_v<T, float>) {
      return fault == NumberFault::kTooLarge ? "a decimal number of at most 3.4e38"
                                             : "a decimal number";
    }
    return fault == NumberFault::kTooLarge ? "a whole number from -2^63 to 2^64 - 1"
                                           : "a whole number";
  }

  bool IsMissing(std::string_view text) const {
    if (text.size() > longest_missing_) return false;
    const auto& missing = options_.missing_texts;
    return std::find(missing.begin(), missing.end(), text) != missing.end();
  }

  static bool MissingOf(const CsvSlot& slot, float& value) {
    if (slot.missing_float) value = *slot.missing_float;
    return slot.missing_float.has_value();
  }
  static bool MissingOf(const CsvSlot& slot, std::int64_t& value) {
    if (slot.missing_id) value = *slot.missing_id;
    return slot.missing_id.has_value();
  }

  LineProblem Problem(std::size_t i, std::string_view line, const char* at,
                      const std::string& wanted, const std::string& found) const {
    return {static_cast<std::size_t>(at - line.data()) + 1,
            "expected in column " + NameOf(i) + " " + wanted + ", found " + found};
  }

  // "'price' (3 of 10)", or "3 of 10" of a column without a name.
  std::string NameOf(std::size_t i) const {
    const std::string& name = options_.fields[i].name;
    const std::string place =
        std::to_string(i + 1) + " of " + std::to_string(options_.fields.size());
    return name.empty() ? place : name + " (" + place + ")";
  }

  const CsvOptions options_;
  std::vector<ColumnSpec> columns_;
  std::size_t longest_missing_ = 0;
};

Status CheckSeparators(const CsvOptions& options) {
  std::string used = "\r\n";
  for (const char c : {options.separator, options.quote}) {
    if (c == '\0' && c == options.quote && options.separator != '\0') continue;
    if (c == '\0' || used.find(c) != std::string::npos) {
      return {Code::kInvalidArgument,
              "separator and quote must be two different bytes, not line breaks"};
    }
    used += c;
  }
  for (const auto& slot : options.slots) {
    if (slot.list_separator != '\0' && used.find(slot.list_separator) != std::string::npos) {
      return {Code::kInvalidArgument,
              "slot '" + slot.column.name + "': values need a different separator than fields"};
    }
  }
  return Status::Ok();
}

}  // namespace

Result<std::shared_ptr<const RecordFormat>> MakeCsv(CsvOptions options) {
  if (Status status = CheckSeparators(options); !status.ok()) return status;
  std::vector<std::vector<bool>> filled;
  std::unordered_set<std::string> names;
  for (const auto& slot : options.slots) {
    if (!names.insert(slot.column.name).second) {
      return Status(Code::kInvalidArgument, "two slots are named '" + slot.column.name + "'");
    }
    const bool one_field = slot.column.width == 0 || slot.list_separator != '\0';
    filled.emplace_back(one_field ? 1 : slot.column.width, false);
  }
  for (const auto& field : options.fields) {
    if (field.slot == CsvField::kUnused) continue;
    if (field.slot >= filled.size() || field.index >= filled[field.slot].size() ||
        filled[field.slot][field.index]) {
      return Status(Code::kInvalidArgument,
                    "column " + field.name + " does not have its own index in a slot");
    }
    filled[field.slot][field.index] = true;
  }
  for (std::size_t i = 0; i < filled.size(); ++i) {
    if (std::find(filled[i].begin(), filled[i].end(), false) != filled[i].end()) {
      return Status(Code::kInvalidArgument,
                    "slot '" + options.slots[i].column.name + "' has fewer columns than values");
    }
  }
  if (filled.empty()) return Status(Code::kInvalidArgument, "Csv needs at least one slot");
  return std::shared_ptr<const RecordFormat>(std::make_shared<Csv>(std::move(options)));
}

}  // namespace sparsefleet
