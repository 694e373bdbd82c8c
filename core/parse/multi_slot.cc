#include "parse/multi_slot.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <unordered_set>
#include <utility>

#include "parse/number.h"

namespace sparsefleet {
namespace {

NumberFault ReadValue(const char*& at, const char* end, std::int64_t& value) {
  if (at != end && *at == '+') ++at;
  std::uint64_t bits = 0;
  const NumberFault fault = ReadUint64(at, end, bits);
  value = std::bit_cast<std::int64_t>(bits);
  return fault;
}

NumberFault ReadValue(const char*& at, const char* end, float& value) {
  return ReadFloat(at, end, value);
}

bool EndsHere(const char* at, const char* end) { return at == end || IsBlank(*at); }

class MultiSlot final : public RecordFormat {
 public:
  explicit MultiSlot(std::vector<ColumnSpec> slots) : slots_(std::move(slots)) {}

  const std::vector<ColumnSpec>& columns() const override { return slots_; }

  bool Parse(std::string_view line, ColumnBatch& batch, LineProblem& problem) const override {
    const char* at = line.data();
    const char* const end = at + line.size();
    auto& columns = batch.columns();
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      std::uint64_t count = 0;
      if (!ParseCount(i, line, at, count, problem)) return false;
      if (!ParseSlot(i, line, count, at, columns[i], problem)) return false;
    }
    at = SkipBlanks(at, end);
    if (at != end) {
      problem = ProblemAt(line, at,
                          "the end of the line after " + std::to_string(slots_.size()) + " slots");
      return false;
    }
    batch.EndRecord();
    return true;
  }

 private:
  bool ParseCount(std::size_t i, std::string_view line, const char*& at, std::uint64_t& count,
                  LineProblem& problem) const {
    const char* const end = line.data() + line.size();
    at = SkipBlanks(at, end);
    const char* const begin = at;
    NumberFault fault = NumberFault::kNone;
    if (end - at >= 2 && IsDigit(at[0]) && IsBlank(at[1])) {  // the common case
      count = static_cast<std::uint64_t>(*at++ - '0');
    } else {
      fault = ReadUint64(at, end, count);
    }
    if (fault != NumberFault::kNone || !EndsHere(at, end) || count == 0) {
      problem = ProblemAt(line, begin,
                          SlotName(i) +
                              "a count of values >= 1 (a slot may not be empty: let the generator "
                              "pad it)");
      return false;
    }
    if (slots_[i].width != 0 && count != slots_[i].width) {
      problem = ProblemAt(
          line, begin,
          SlotName(i) + "the count " + std::to_string(slots_[i].width) + " of a dense slot");
      return false;
    }
    return true;
  }

  bool ParseSlot(std::size_t i, std::string_view line, std::uint64_t count, const char*& at,
                 Column& column, LineProblem& problem) const {
    switch (slots_[i].kind) {
      case ValueKind::kFloat:
        return ParseValues(i, line, count, at, column.floats, problem);
      case ValueKind::kText:
        return ParseText(i, line, count, at, column.texts, problem);
      default:
        return ParseValues(i, line, count, at, column.ids, problem);
    }
  }

  bool ParseText(std::size_t i, std::string_view line, std::uint64_t count, const char*& at,
                 GrowingArray<std::uint8_t>& texts, LineProblem& problem) const {
    const char* const end = line.data() + line.size();
    at = SkipBlanks(at, end);
    const char* const begin = at;
    while (!EndsHere(at, end)) ++at;
    if (count != 1 || at == begin) {
      problem = ProblemAt(
          line, begin,
          SlotName(i) + "1 and a text without blanks, not " + std::to_string(count) + " values");
      return false;
    }
    const auto size = static_cast<std::size_t>(at - begin);
    std::memcpy(texts.Extend(size), begin, size);
    texts.Commit(size);
    return true;
  }

  template <typename T>
  bool ParseValues(std::size_t i, std::string_view line, std::uint64_t count, const char*& at,
                   GrowingArray<T>& values, LineProblem& problem) const {
    const char* const end = line.data() + line.size();
    // A value takes a blank and a digit, so a count cannot ask for more room than the line has.
    const std::uint64_t most = static_cast<std::uint64_t>(end - at) / 2;
    T* out = values.Extend(count < most ? count : most);
    for (std::uint64_t n = 0; n < count; ++n) {
      at = SkipBlanks(at, end);
      const char* const begin = at;
      T value{};
      const NumberFault fault = ReadValue(at, end, value);
      if (fault != NumberFault::kNone || !EndsHere(at, end)) {
        problem = ProblemAt(line, begin, ValueWanted<T>(i, n, count, fault));
        return false;
      }
      out[n] = value;
    }
    values.Commit(count);
    return true;
  }

  template <typename T>
  std::string ValueWanted(std::size_t i, std::uint64_t n, std::uint64_t count,
                          NumberFault fault) const {
    std::string wanted =
        std::is_same_v<T, float> ? "a decimal number" : "an unsigned 64-bit number";
    if (fault == NumberFault::kTooLarge) {
      wanted += std::is_same_v<T, float> ? " of at most 3.4e38" : " of at most 2^64 - 1";
    }
    return SlotName(i) + wanted + " (value " + std::to_string(n + 1) + " of " +
           std::to_string(count) + ")";
  }

  std::string SlotName(std::size_t i) const {
    return "in slot '" + slots_[i].name + "' (" + std::to_string(i + 1) + " of " +
           std::to_string(slots_.size()) + ") ";
  }

  const std::vector<ColumnSpec> slots_;
};

}  // namespace

Result<std::shared_ptr<const RecordFormat>> MakeMultiSlot(std::vector<ColumnSpec> slots) {
  if (slots.empty()) {
    return Status(Code::kInvalidArgument, "MultiSlot needs at least one slot, got none");
  }
  std::unordered_set<std::string> names;
  for (const auto& slot : slots) {
    if (slot.name.empty()) return Status(Code::kInvalidArgument, "a slot has no name");
    if (!names.insert(slot.name).second) {
      return Status(Code::kInvalidArgument, "two slots are named '" + slot.name + "'");
    }
    if (slot.kind == ValueKind::kText && slot.width != 0) {
      return Status(Code::kInvalidArgument, "slot '" + slot.name + "': a text has no width");
    }
  }
  return std::shared_ptr<const RecordFormat>(std::make_shared<MultiSlot>(std::move(slots)));
}

}  // namespace sparsefleet
