// Gradients as Python hands them over. Header only.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bind.h"
#include "table/table_set.h"

namespace sparsefleet::python {

// (table, keys or None for a dense table, gradients, keys are unique, add past the optimizer,
// room for a dense table's values after the push or None)
using PushTuple = std::tuple<std::string, std::optional<Array<const Key>>, Array<const float>, bool,
                             bool, std::optional<Array<float>>>;
// applied, rejected_non_finite, not_admitted
using PushTotals = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;

inline std::vector<PushSection> SectionsOf(const std::vector<PushTuple>& parts) {
  std::vector<PushSection> sections;
  sections.reserve(parts.size());
  for (const auto& [table, keys, gradients, unique, add, out] : parts) {
    PushSection section;
    section.table = table;
    section.dense = !keys.has_value();
    if (keys) section.keys = SpanOf(*keys);
    section.gradients = SpanOf(gradients);
    section.keys_are_unique = unique;
    section.add = add;
    if (out) section.out = SpanOf(*out);
    sections.push_back(section);
  }
  return sections;
}

inline PushTotals TotalsOf(const PushResult& result) {
  return {result.applied, result.rejected_non_finite, result.not_admitted};
}

}  // namespace sparsefleet::python
