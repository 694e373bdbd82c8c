#include "parse/criteo.h"

#include <array>
#include <bit>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "parse/hash64.h"
#include "parse/number.h"

namespace sparsefleet {
namespace {

constexpr std::size_t kMaxHexDigits = 8;
constexpr std::int64_t kSmallCounts = 1024;

int ValueOfHexDigit(char c) {
  if (IsDigit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// In double, which is faster than log1pf and rounds better.
float LogOf(std::int64_t count) {
  return count < 0 ? 0.0f : static_cast<float>(std::log(static_cast<double>(count) + 1.0));
}

// The position of the next tab, or `end`. Fields are too short for the overhead of memchr.
const char* FindTab(const char* at, const char* end) {
  for (; end - at >= 8; at += 8) {
    const std::uint64_t others = WordAt(at, end) ^ 0x0909090909090909ULL;
    // The high bit of the lowest byte that is zero, and perhaps of bytes above it.
    const std::uint64_t tabs = (others - 0x0101010101010101ULL) & ~others & 0x8080808080808080ULL;
    if (tabs != 0) return at + std::countr_zero(tabs) / 8;
  }
  while (at != end && *at != '\t') ++at;
  return at;
}

// Iterates over the fields of a line.
class Fields {
 public:
  explicit Fields(std::string_view line) : at_(line.data()), end_(line.data() + line.size()) {
    if (at_ != end_ && end_[-1] == '\r') --end_;
  }

  // Returns false if the line has no more fields.
  bool Next(std::string_view& field) {
    if (ended_) return false;
    const char* const stop = FindTab(at_, end_);
    field = {at_, static_cast<std::size_t>(stop - at_)};
    EndAt(stop);
    return true;
  }

  // Parses the next field as a number; `found` is false if it is empty. Returns false, with the
  // position, if it is not a number. REQUIRES: !ended().
  bool NextInt64(std::int64_t& value, bool& found) {
    const char* stop = at_;
    found = stop != end_ && *stop != '\t';
    if (found && ReadInt64(stop, end_, value) != NumberFault::kNone) return false;
    if (stop != end_ && *stop != '\t') return false;
    EndAt(stop);
    return true;
  }

  bool ended() const { return ended_; }
  const char* at() const { return at_; }

 private:
  void EndAt(const char* stop) {
    ended_ = stop == end_;
    at_ = ended_ ? end_ : stop + 1;
  }

  const char* at_;
  const char* end_;
  bool ended_ = false;
};

class Criteo final : public RecordFormat {
 public:
  explicit Criteo(const CriteoOptions& options) : options_(options) {
    if (options_.has_label) columns_.push_back({"label", ValueKind::kFloat, 1});
    columns_.push_back({"counts", ValueKind::kFloat, kCriteoCounts});
    columns_.push_back({"categories", ValueKind::kUint64, kCriteoCategories});
    for (std::size_t i = 0; i < small_logs_.size(); ++i) {
      small_logs_[i] = LogOf(static_cast<std::int64_t>(i));
    }
  }

  const std::vector<ColumnSpec>& columns() const override { return columns_; }

  bool Parse(std::string_view line, ColumnBatch& batch, LineProblem& problem) const override {
    Fields fields(line);
    auto* column = batch.columns().data();
    if (options_.has_label && !ParseLabel(line, fields, *column++, problem)) return false;
    if (!ParseCounts(line, fields, *column++, problem)) return false;
    if (!ParseCategories(line, fields, *column, problem)) return false;
    if (!fields.ended()) {
      problem = ProblemAt(line, fields.at() - 1,
                          "the end of the line after " + std::to_string(NumFields()) + " fields");
      return false;
    }
    batch.EndRecord();
    return true;
  }

 private:
  std::size_t NumFields() const {
    return (options_.has_label ? 1 : 0) + kCriteoCounts + kCriteoCategories;
  }

  bool ParseLabel(std::string_view line, Fields& fields, Column& out, LineProblem& problem) const {
    std::string_view field;
    fields.Next(field);  // a line has at least one field, possibly empty
    if (field != "0" && field != "1") {
      problem = ProblemAt(line, field.data(), "a label 0 or 1 (field 1)");
      return false;
    }
    out.floats.Append(field == "1" ? 1.0f : 0.0f);
    return true;
  }

  bool ParseCounts(std::string_view line, Fields& fields, Column& out, LineProblem& problem) const {
    float* values = out.floats.Extend(kCriteoCounts);
    for (std::size_t i = 0; i < kCriteoCounts; ++i) {
      if (fields.ended()) return Missing(line, fields, "count", i, kCriteoCounts, problem);
      std::int64_t count = 0;
      bool found = false;
      if (!fields.NextInt64(count, found)) {
        problem = ProblemAt(line, fields.at(),
                            "a 64-bit integer or nothing as count " + std::to_string(i + 1) +
                                " of " + std::to_string(kCriteoCounts));
        return false;
      }
      if (!found) {
        values[i] = options_.missing_count;
      } else {
        values[i] = options_.log_counts ? LogOfCount(count) : static_cast<float>(count);
      }
    }
    out.floats.Commit(kCriteoCounts);
    return true;
  }

  bool ParseCategories(std::string_view line, Fields& fields, Column& out,
                       LineProblem& problem) const {
    std::int64_t* values = out.ids.Extend(kCriteoCategories);
    for (std::size_t i = 0; i < kCriteoCategories; ++i) {
      std::string_view field;
      if (!fields.Next(field)) {
        return Missing(line, fields, "category", i, kCriteoCategories, problem);
      }
      if (options_.hash_categories) {
        values[i] = std::bit_cast<std::int64_t>(Hash64(field, i));
      } else if (!ValueOfHex(field, values[i])) {
        problem = ProblemAt(line, field.data(),
                            "up to 8 hexadecimal digits or nothing as category " +
                                std::to_string(i + 1) + " of " + std::to_string(kCriteoCategories));
        return false;
      }
    }
    out.ids.Commit(kCriteoCategories);
    return true;
  }

  bool Missing(std::string_view line, const Fields& fields, const char* noun, std::size_t i,
               std::size_t of, LineProblem& problem) const {
    problem =
        ProblemAt(line, fields.at(),
                  std::string(noun) + " " + std::to_string(i + 1) + " of " + std::to_string(of) +
                      " (a line has " + std::to_string(NumFields()) + " fields with tabs between)");
    return false;
  }

  static bool ValueOfHex(std::string_view text, std::int64_t& value) {
    if (text.size() > kMaxHexDigits) return false;
    std::int64_t sum = 0;
    for (const char c : text) {
      const int digit = ValueOfHexDigit(c);
      if (digit < 0) return false;
      sum = sum * 16 + digit;
    }
    value = text.empty() ? kCriteoMissingId : sum;
    return true;
  }

  float LogOfCount(std::int64_t count) const {
    if (count >= 0 && count < kSmallCounts) return small_logs_[static_cast<std::size_t>(count)];
    return LogOf(count);
  }

  const CriteoOptions options_;
  std::vector<ColumnSpec> columns_;
  std::array<float, kSmallCounts> small_logs_{};  // most counts are small, and logarithms are slow
};

}  // namespace

std::shared_ptr<const RecordFormat> MakeCriteo(const CriteoOptions& options) {
  return std::make_shared<Criteo>(options);
}

}  // namespace sparsefleet
