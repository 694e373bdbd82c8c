// Gradients as Python passes them. Header only.
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
#include "store/gradient_merge.h"
#include "table/table_set.h"

namespace sparsefleet::python {

// (table, keys or None for a dense table, gradients in parts, keys are unique, add without the
// optimizer, room for a dense table's values after the push or None)
using PushTuple =
    std::tuple<std::string, std::optional<Array<const Key>>, std::vector<Array<const float>>, bool,
               bool, std::optional<Array<float>>>;
// stream, epoch, begin, end: see DataMark
using DataTuple = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;

inline std::vector<DataMark> MarksOf(const std::vector<DataTuple>& data) {
  std::vector<DataMark> marks;
  marks.reserve(data.size());
  for (const auto& [stream, epoch, begin, end] : data) marks.push_back({stream, epoch, begin, end});
  return marks;
}

// applied, rejected_non_finite, not_admitted
using PushTotals = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>;

// Sections that point into the tuples they are built from.
struct PushSections {
  std::vector<PushSection> sections;
  std::vector<std::vector<std::span<const float>>> parts;  // of each
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

// The mini-batches of one push, each a list of tuples, and the rows requested after it.
class MergedSections {
 public:
  MergedSections(const std::vector<std::vector<PushTuple>>& batches,
                 const std::vector<PushTuple>& wanted, const std::vector<DataTuple>& data = {})
      : wanted_(SectionsOf(wanted)), marks_(MarksOf(data)) {
    batches_.reserve(batches.size());
    contributions_.reserve(batches.size());
    for (const auto& batch : batches) {
      batches_.push_back(SectionsOf(batch));
      contributions_.push_back({.sections = batches_.back().sections, .refusal = {}, .memory = {}});
    }
  }

  // Calls `push(sections)` with the mean of the mini-batches. Needs no GIL.
  template <typename Push>
  Result<PushResult> Merge(Push push) const {
    thread_local GradientMerge merge;  // reuses its buffers, which are as large as a push
    std::vector<const Contribution*> contributions;
    for (const auto& contribution : contributions_) contributions.push_back(&contribution);
    auto merged = merge.Build(contributions);
    if (!merged.ok()) return merged.status();
    std::vector<PushSection> sections(merged.value().begin(), merged.value().end());
    sections.insert(sections.end(), wanted_.sections.begin(), wanted_.sections.end());
    if (!marks_.empty()) {
      PushSection data;
      data.marks = marks_;
      sections.push_back(data);
    }
    return push(std::span<const PushSection>(sections));
  }

 private:
  const PushSections wanted_;
  const std::vector<DataMark> marks_;
  std::vector<PushSections> batches_;
  std::vector<Contribution> contributions_;
};

inline PushTotals TotalsOf(const PushResult& result) {
  return {result.applied, result.rejected_non_finite, result.not_admitted};
}

}  // namespace sparsefleet::python
