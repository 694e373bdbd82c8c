// Criteo's click logs: tab-separated text, one example per line.
//
// Format:  line = label TAB count{13, TAB between} TAB category{26, TAB between}
// label is 0 or 1; a count is a decimal integer or empty; a category is a text or empty.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "parse/record_format.h"
#include "status/status.h"

namespace sparsefleet {

inline constexpr std::size_t kCriteoCounts = 13;
inline constexpr std::size_t kCriteoCategories = 26;
inline constexpr std::int64_t kCriteoMissingId = -1;

struct CriteoOptions {
  // The id of category c (from 0) with text t is Hash64(t, seed c), including an empty t. Otherwise
  // it is t as a hexadecimal number of up to 8 digits, and kCriteoMissingId if t is empty.
  bool hash_categories = true;
  // A count x becomes log(1 + x), and 0 if it is negative.
  bool log_counts = true;
  float missing_count = 0.0f;  // used directly, not its logarithm
  bool has_label = true;       // false: lines begin with the first count
};

// Columns: "label" float32[B, 1] if present, "counts" float32[B, 13], "categories" int64[B, 26].
std::shared_ptr<const RecordFormat> MakeCriteo(const CriteoOptions& options);

}  // namespace sparsefleet
