// Makes the keys of a batch unique, spreads rows over a batch and sums gradients.
// Every call releases the GIL. Letters: N keys of a batch, U distinct ones, D row width.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "bind.h"
#include "merge/dense_parts.h"
#include "merge/unique.h"
#include "raise.h"
#include "status/status.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsefleet::python {
namespace {

// Room for 2^31 distinct keys, and for kPaddingPlace beyond them.
constexpr std::size_t kMaxKeys = (std::size_t{1} << 31) - 1;

template <typename T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// (begin, end, padding key)
using RangeTuple = std::tuple<std::size_t, std::size_t, Key>;

Status CheckRanges(std::size_t num_keys, const std::vector<PaddedRange>& ranges) {
  std::size_t at = 0;
  for (const PaddedRange& range : ranges) {
    if (range.begin < at || range.end < range.begin || range.end > num_keys) {
      return {Code::kInvalidArgument,
              "padded ranges must be in order, disjoint and "
              "within the " +
                  std::to_string(num_keys) + " keys"};
    }
    at = range.end;
  }
  return Status::Ok();
}

std::vector<PaddedRange> RangesOf(std::size_t num_keys, const std::vector<RangeTuple>& padding) {
  if (num_keys > kMaxKeys) {
    Raise({Code::kTooLarge, "a batch has at most 2^31 - 1 keys, got " + std::to_string(num_keys)});
  }
  std::vector<PaddedRange> ranges;
  ranges.reserve(padding.size());
  for (const auto& [begin, end, key] : padding) ranges.push_back({begin, end, key});
  Check(CheckRanges(num_keys, ranges));
  return ranges;
}

// The distinct keys of some tables, table by table, and the place of each key in its table.
struct DistinctKeys {
  std::vector<Key> keys;
  std::vector<std::size_t> counts;  // of distinct keys, by table
  std::vector<std::uint32_t> inverse;

  // REQUIRES: the ranges fit the keys.
  void Add(std::span<const Key> all, std::span<const PaddedRange> ranges) {
    thread_local UniqueKeys unique;  // reuses its hash table, which is as large as the batch
    unique.Build(all, ranges);
    keys.insert(keys.end(), unique.keys().begin(), unique.keys().end());
    inverse.insert(inverse.end(), unique.inverse().begin(), unique.inverse().end());
    counts.push_back(unique.size());
  }

  nb::object TakeKeys() {
    const std::size_t shape[] = {keys.size()};
    return ToNumpy(std::move(keys), shape);
  }
  nb::object TakeInverse() {
    const std::size_t shape[] = {inverse.size()};
    return ToNumpy(std::move(inverse), shape);
  }
};

nb::tuple Unique(const Array<const Key>& keys, const std::vector<RangeTuple>& padding) {
  const std::vector<PaddedRange> ranges = RangesOf(keys.size(), padding);
  DistinctKeys distinct;
  {
    nb::gil_scoped_release release;
    distinct.Add(SpanOf(keys), ranges);
  }
  return nb::make_tuple(distinct.TakeKeys(), distinct.TakeInverse());
}

// The ids of a table's lookups, one after another, and where they hold padding.
using Ids = Array<const std::int64_t>;
using TableIds = std::tuple<std::vector<Ids>, std::vector<RangeTuple>>;

// Ids reinterpreted as unsigned.
std::span<const Key> KeysOf(const Ids& ids) {
  return {reinterpret_cast<const Key*>(ids.data()), ids.size()};
}

nb::tuple UniqueOfTables(const std::vector<TableIds>& tables) {
  std::vector<std::vector<PaddedRange>> ranges;
  ranges.reserve(tables.size());
  std::size_t total = 0;
  for (const auto& [lookups, padding] : tables) {
    std::size_t num_keys = 0;
    for (const auto& ids : lookups) num_keys += ids.size();
    ranges.push_back(RangesOf(num_keys, padding));
    total += num_keys;
  }
  DistinctKeys distinct;
  {
    nb::gil_scoped_release release;
    distinct.keys.reserve(total);
    distinct.inverse.reserve(total);
    std::vector<Key> joined;
    for (std::size_t i = 0; i < tables.size(); ++i) {
      const auto& lookups = std::get<0>(tables[i]);
      if (lookups.size() == 1) {
        distinct.Add(KeysOf(lookups[0]), ranges[i]);
        continue;
      }
      joined.clear();
      for (const auto& ids : lookups) {
        const std::span<const Key> keys = KeysOf(ids);
        joined.insert(joined.end(), keys.begin(), keys.end());
      }
      distinct.Add(joined, ranges[i]);
    }
  }
  return nb::make_tuple(distinct.TakeKeys(), nb::cast(std::move(distinct.counts)),
                        distinct.TakeInverse());
}

// `few` has one row per distinct key, `many` one per key of the batch.
Status CheckShapes(const Array<const std::uint32_t>& inverse, std::size_t few_rows,
                   std::size_t few_dim, std::size_t many_rows, std::size_t many_dim) {
  if (few_dim != many_dim || many_rows != inverse.size()) {
    return {Code::kShapeMismatch,
            "rows [" + std::to_string(few_rows) + ", " + std::to_string(few_dim) + "], inverse [" +
                std::to_string(inverse.size()) + "] and batch [" + std::to_string(many_rows) +
                ", " + std::to_string(many_dim) + "] do not match"};
  }
  for (const std::uint32_t place : SpanOf(inverse)) {
    if (place >= few_rows && place != kPaddingPlace) {
      return {Code::kShapeMismatch,
              "inverse names row " + std::to_string(place) + " of " + std::to_string(few_rows)};
    }
  }
  return Status::Ok();
}

void Gather(const Matrix<const float>& rows, const Array<const std::uint32_t>& inverse,
            const Matrix<float>& out) {
  Status status;
  {
    nb::gil_scoped_release release;
    status = CheckShapes(inverse, rows.shape(0), rows.shape(1), out.shape(0), out.shape(1));
    if (status.ok()) {
      GatherRows({rows.data(), rows.size()}, SpanOf(inverse), rows.shape(1),
                 {out.data(), out.size()});
    }
  }
  Check(status);
}

void Sum(const Matrix<const float>& rows, const Array<const std::uint32_t>& inverse,
         const Matrix<float>& out) {
  Status status;
  {
    nb::gil_scoped_release release;
    status = CheckShapes(inverse, out.shape(0), out.shape(1), rows.shape(0), rows.shape(1));
    if (status.ok()) {
      SumRows({rows.data(), rows.size()}, SpanOf(inverse), rows.shape(1), {out.data(), out.size()});
    }
  }
  Check(status);
}

using PartArrays = std::vector<Array<const float>>;

// Calls use(parts) without the GIL if they have the same number of elements as `whole`.
template <typename Use>
auto WithParts(const PartArrays& arrays, const Array<float>& whole, Use use) {
  std::vector<std::span<const float>> parts;
  parts.reserve(arrays.size());
  for (const auto& array : arrays) parts.push_back(SpanOf(array));
  if (const std::size_t size = SizeOfParts(parts); size != whole.size()) {
    Raise({Code::kShapeMismatch, "parts of " + std::to_string(size) + " elements do not make up " +
                                     std::to_string(whole.size())});
  }
  nb::gil_scoped_release release;
  return use(parts);
}

void Join(const PartArrays& parts, const Array<float>& out) {
  WithParts(parts, out, [&](DenseParts spans) { JoinParts(spans, SpanOf(out)); });
}

void AddTo(const PartArrays& parts, const Array<float>& out) {
  WithParts(parts, out, [&](DenseParts spans) { AddParts(spans, SpanOf(out)); });
}

bool StepBy(const PartArrays& parts, float learning_rate, const Array<float>& values) {
  return WithParts(parts, values, [&](DenseParts spans) {
    return StepByParts(spans, learning_rate, SpanOf(values));
  });
}

}  // namespace

void BindMerge(nb::module_& m) {
  m.attr("PADDING_PLACE") = kPaddingPlace;
  m.def(
      "unique", &Unique, "keys"_a, "padding"_a = std::vector<RangeTuple>(),
      nb::sig("def unique(keys: NDArray[numpy.uint64], padding: Sequence[tuple[int, int, int]] = "
              "...) -> tuple[NDArray[numpy.uint64], NDArray[numpy.uint32]]"),
      "The distinct keys uint64[U] in order of first occurrence, and where each key went, "
      "uint32[N]. `padding` lists (begin, end, key): there the key gets PADDING_PLACE, not a row.");
  m.def(
      "unique_of_tables", &UniqueOfTables, "tables"_a,
      nb::sig("def unique_of_tables(tables: Sequence[tuple[Sequence[NDArray[numpy.int64]], "
              "Sequence[tuple[int, int, int]]]]) -> tuple[NDArray[numpy.uint64], list[int], "
              "NDArray[numpy.uint32]]"),
      "unique() of several tables at once: each is the ids of its lookups, one after another, and "
      "its padding. Returns the distinct keys of all tables, table by table, their number by "
      "table, and the place of each id among the keys of its table.");
  m.def("gather_rows", &Gather, "rows"_a, "inverse"_a, "out"_a,
        "Copies rows[inverse[i]] (float32[U, D]) to out[i] (float32[N, D]); zeros for "
        "PADDING_PLACE.");
  m.def("sum_rows", &Sum, "rows"_a, "inverse"_a, "out"_a,
        "Sums rows[i] (float32[N, D]) into out[inverse[i]] (float32[U, D]), which starts from "
        "zero.");
  m.def("join_parts", &Join, "parts"_a, "out"_a,
        "Copies flat float32 arrays in order to out (float32, the same number of elements).");
  m.def("add_parts", &AddTo, "parts"_a, "out"_a,
        "Adds flat float32 arrays in order to out (float32, the same number of elements).");
  m.def("step_by_parts", &StepBy, "parts"_a, "learning_rate"_a, "values"_a,
        "values -= learning_rate * parts. False, with nothing changed, where a part holds NaN or "
        "infinity.");
}

}  // namespace sparsefleet::python
