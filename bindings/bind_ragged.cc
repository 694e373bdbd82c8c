// Gathers records of any length by number. Releases the GIL. Letters: R records held, B taken.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "bind.h"
#include "parse/ragged.h"
#include "raise.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsefleet::python {
namespace {

using AnyArray = nb::ndarray<nb::ro, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Records = Array<const std::uint32_t>;
using Marks = Array<const std::uint64_t>;

template <typename Value, typename Length>
nb::tuple Gather(const AnyArray& values, std::span<const Length> lengths, const Marks& marks,
                 const Records& records) {
  std::vector<Value> out;
  std::vector<std::int64_t> offsets(records.size() + 1);
  {
    nb::gil_scoped_release release;
    MeasureRecords<Length>(lengths, SpanOf(records), offsets);
    out.resize(static_cast<std::size_t>(offsets.back()));
    CopyRecords<Length>(lengths, SpanOf(marks), SpanOf(records),
                        static_cast<const std::byte*>(values.data()), sizeof(Value),
                        reinterpret_cast<std::byte*>(out.data()));
  }
  const std::size_t shape[] = {out.size()};
  const std::size_t offsets_shape[] = {offsets.size()};
  return nb::make_tuple(ToNumpy(std::move(out), shape), ToNumpy(std::move(offsets), offsets_shape));
}

// The marks must be within the values, so that no record is read from beyond them.
template <typename Length>
Status CheckRecords(std::size_t num_values, std::span<const Length> lengths, const Marks& marks,
                    const Records& records) {
  const std::size_t num_marks = (lengths.size() + kRecordsPerMark - 1) / kRecordsPerMark;
  if (marks.size() != num_marks) {
    return {Code::kShapeMismatch, std::to_string(lengths.size()) + " lengths need " +
                                      std::to_string(num_marks) + " marks, got " +
                                      std::to_string(marks.size())};
  }
  for (const std::uint32_t record : SpanOf(records)) {
    if (record >= lengths.size() ||
        BeginOf(lengths, SpanOf(marks), record) + lengths[record] > num_values) {
      return {Code::kShapeMismatch, "record " + std::to_string(record) + " is not within the " +
                                        std::to_string(lengths.size()) + " records of " +
                                        std::to_string(num_values) + " values"};
    }
  }
  return Status::Ok();
}

template <typename Length>
nb::tuple GatherWith(const AnyArray& values, const AnyArray& lengths, const Marks& marks,
                     const Records& records) {
  const std::span<const Length> span{static_cast<const Length*>(lengths.data()), lengths.size()};
  Check(CheckRecords(values.size(), span, marks, records));
  if (values.dtype() == nb::dtype<std::int64_t>()) {
    return Gather<std::int64_t>(values, span, marks, records);
  }
  if (values.dtype() == nb::dtype<float>()) return Gather<float>(values, span, marks, records);
  if (values.dtype() == nb::dtype<std::uint8_t>()) {
    return Gather<std::uint8_t>(values, span, marks, records);
  }
  Raise({Code::kInvalidArgument, "values must be int64, float32 or uint8"});
}

nb::tuple GatherRagged(const AnyArray& values, const AnyArray& lengths, const Marks& marks,
                       const Records& records) {
  const auto dtype = lengths.dtype();
  if (dtype == nb::dtype<std::uint8_t>()) {
    return GatherWith<std::uint8_t>(values, lengths, marks, records);
  }
  if (dtype == nb::dtype<std::uint16_t>()) {
    return GatherWith<std::uint16_t>(values, lengths, marks, records);
  }
  if (dtype == nb::dtype<std::uint32_t>()) {
    return GatherWith<std::uint32_t>(values, lengths, marks, records);
  }
  Raise({Code::kInvalidArgument, "lengths must be uint8, uint16 or uint32"});
}

}  // namespace

void BindRagged(nb::module_& m) {
  m.attr("RECORDS_PER_MARK") = kRecordsPerMark;
  m.def("gather_ragged", &GatherRagged, "values"_a, "lengths"_a, "marks"_a, "records"_a,
        nb::sig("def gather_ragged(values: NDArray[numpy.int64] | NDArray[numpy.float32] | "
                "NDArray[numpy.uint8], lengths: "
                "NDArray[numpy.uint8] | NDArray[numpy.uint16] | NDArray[numpy.uint32], marks: "
                "NDArray[numpy.uint64], records: NDArray[numpy.uint32]) -> "
                "tuple[NDArray[numpy.int64] | NDArray[numpy.float32] | NDArray[numpy.uint8], "
                "NDArray[numpy.int64]]"),
        "Returns the values of the records uint32[B] in order, and int64[B + 1] where each begins. "
        "Every RECORDS_PER_MARK-th of the R records, of lengths[R], begins at a mark.");
}

}  // namespace sparsefleet::python
