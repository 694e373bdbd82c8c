// Gradients as Python hands them over. Header only.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "bind.h"
#include "table/table_set.h"

namespace sparsefleet::python {

// (table, keys or None for a dense table, gradients in parts, keys are unique, add past the
// optimizer, room for a dense table's values after the push or None)
using PushTuple =
    std::tuple<std::string, std::optional<Array<const Key>>, std::vector<Array<const float>>, bool,
               bool, std::optional<Array<float>>>;
// applied, rejected_non_finite, not_admitted
using PushTotals = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;

// Point into the tuples they are made of.
struct PushSections {
  std::vector<PushSection> sections;
  std::vector<std::vector<std::span<const float>>> parts;  // of each
  operator std::span<const PushSection>() const { return sections; }
};

inline PushSections SectionsOf(const std::vector<PushTuple>& tuples) {
  PushSections made;
  made.sections.reserve(tuples.size());
  made.parts.reserve(tuples.size());
  for (const auto& [table, keys, gradients, unique, add, out] : tuples) {
    auto& parts = made.parts.emplace_back();
    for (const auto& part : gradients) parts.push_back(SpanOf(part));
    PushSection section;
    section.table = table;
    section.dense = !keys.has_value();
    if (keys) section.keys = SpanOf(*keys);
    if (parts.size() == 1) section.gradients = parts[0];
    if (parts.size() > 1) section.parts = parts;
    section.keys_are_unique = unique;
    section.add = add;
    if (out) section.out = SpanOf(*out);
    made.sections.push_back(section);
  }
  return made;
}

inline PushTotals TotalsOf(const PushResult& result) {
  return {result.applied, result.rejected_non_finite, result.not_admitted};
}

}  // namespace sparsefleet::python
