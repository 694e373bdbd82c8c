// Parses text into columns and hashes texts. Parsing releases the GIL; columns go to NumPy without
// a copy. Letters: B records, N values.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <bit>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "bind.h"
#include "format_handle.h"
#include "parse/criteo.h"
#include "parse/hash64.h"
#include "parse/multi_slot.h"
#include "parse/multi_slot_binary.h"
#include "parse/record_parser.h"
#include "raise.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsefleet::python {
namespace {

// (name, type of its values, values per record or 0)
using SlotTuple = std::tuple<std::string, std::string, std::uint32_t>;

ValueKind KindOf(const std::string& dtype) {
  if (dtype == "uint64") return ValueKind::kUint64;
  if (dtype == "float") return ValueKind::kFloat;
  if (dtype == "text") return ValueKind::kText;
  Raise({Code::kInvalidArgument, "a slot holds uint64, float or text, got '" + dtype + "'"});
}

FormatHandle MultiSlotOf(const std::vector<SlotTuple>& slots) {
  std::vector<ColumnSpec> specs;
  specs.reserve(slots.size());
  for (const auto& [name, dtype, width] : slots) specs.push_back({name, KindOf(dtype), width});
  return {Check(MakeMultiSlot(std::move(specs)))};
}

template <typename T>
nb::object Take(GrowingArray<T>& values, std::size_t rows, std::size_t width) {
  const std::size_t shape[] = {rows, width};
  auto memory = values.Release();
  T* const data = memory.get();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  memory.release();
  return nb::cast(nb::ndarray<nb::numpy, T>(data, width == 0 ? 1 : 2, shape, owner));
}

nb::object TakeValues(Column& column, std::size_t rows, std::size_t width) {
  switch (column.spec.kind) {
    case ValueKind::kFloat:
      return Take(column.floats, rows, width);
    case ValueKind::kText:
      return Take(column.texts, rows, width);
    default:
      return Take(column.ids, rows, width);
  }
}

// Each column as (values, offsets or None); the batch is empty afterwards.
nb::list TakeColumns(ColumnBatch& batch) {
  nb::list taken;
  const std::size_t records = batch.num_records();
  for (auto& column : batch.columns()) {
    const std::uint32_t width = column.spec.width;
    const std::size_t rows = width == 0 ? column.size() : records;
    nb::object values = TakeValues(column, rows, width);
    nb::object offsets = nb::none();
    if (width == 0) offsets = Take(column.offsets, records + 1, 0);
    taken.append(nb::make_tuple(std::move(values), std::move(offsets)));
  }
  batch.Restart();
  return taken;
}

// Keeps the block being parsed alive.
class ParserHandle {
 public:
  ParserHandle(const FormatHandle& format, std::size_t max_line_bytes)
      : parser_(format.format, max_line_bytes) {}

  void BeginFile(std::uint64_t skip_lines, std::uint64_t share, std::uint64_t num_shares) {
    if (share >= num_shares) Raise({Code::kInvalidArgument, "share must be below num_shares"});
    parser_.BeginFile(skip_lines, {share, num_shares});
    block_ = nb::bytes("", 0);
  }
  void Feed(nb::bytes block) {
    parser_.Feed({block.c_str(), block.size()});
    block_ = std::move(block);
  }
  void Finish() {
    parser_.Finish();
    block_ = nb::bytes("", 0);
  }
  int Parse(ColumnBatch& batch, std::size_t max_records) {
    nb::gil_scoped_release release;
    return static_cast<int>(parser_.Parse(batch, max_records));
  }
  std::uint64_t line() const { return parser_.line(); }
  nb::tuple bad_line() const {
    const BadLine& bad = parser_.bad_line();
    return nb::make_tuple(bad.line, bad.problem.column, ReadableText(bad.problem.what),
                          nb::bytes(bad.text.data(), bad.text.size()));
  }

 private:
  RecordParser parser_;
  nb::bytes block_{"", 0};
};

// Texts as Arrow has them: text i is bytes[offsets[i] .. offsets[i + 1]).
template <typename Offset>
nb::object HashTexts(const Array<const std::uint8_t>& bytes, const Array<const Offset>& offsets,
                     std::uint64_t seed) {
  const auto* const text = reinterpret_cast<const char*>(bytes.data());
  const std::size_t num_texts = offsets.size() == 0 ? 0 : offsets.size() - 1;
  std::vector<std::int64_t> ids(num_texts);
  bool inside = true;
  {
    nb::gil_scoped_release release;
    for (std::size_t i = 0; i < num_texts && inside; ++i) {
      const auto begin = static_cast<std::int64_t>(offsets.data()[i]);
      const auto end = static_cast<std::int64_t>(offsets.data()[i + 1]);
      inside = 0 <= begin && begin <= end && end <= static_cast<std::int64_t>(bytes.size());
      if (!inside) break;
      const std::string_view one(text + begin, static_cast<std::size_t>(end - begin));
      ids[i] = std::bit_cast<std::int64_t>(Hash64(one, seed));
    }
  }
  if (!inside) Raise({Code::kShapeMismatch, "text offsets must not decrease or exceed the bytes"});
  const std::size_t shape[] = {num_texts};
  return ToNumpy(std::move(ids), shape);
}

std::string_view BytesOf(nb::handle text) {
  Py_ssize_t size = 0;
  if (PyUnicode_Check(text.ptr())) {
    const char* data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (data == nullptr) throw nb::python_error();
    return {data, static_cast<std::size_t>(size)};
  }
  if (!PyBytes_Check(text.ptr())) {
    Raise({Code::kInvalidArgument, std::string("a text to hash must be str or bytes, got a ") +
                                       Py_TYPE(text.ptr())->tp_name});
  }
  char* data = nullptr;
  PyBytes_AsStringAndSize(text.ptr(), &data, &size);
  return {data, static_cast<std::size_t>(size)};
}

}  // namespace

void BindParse(nb::module_& m) {
  m.def(
      "hash64", [](nb::handle text, std::uint64_t seed) { return Hash64(BytesOf(text), seed); },
      "text"_a, "seed"_a = 0, nb::sig("def hash64(text: str | bytes, seed: int = 0) -> int"),
      "XXH64 of the bytes; a str is encoded as UTF-8.");
  const char* const about_hash_texts =
      "hash64 of bytes[offsets[i] .. offsets[i + 1]) for each i, int64 by bit pattern.";
  m.def("hash_texts", &HashTexts<std::int32_t>, "bytes"_a, "offsets"_a, "seed"_a,
        nb::sig("def hash_texts(bytes: NDArray[numpy.uint8], offsets: NDArray[numpy.int32], seed: "
                "int) -> NDArray[numpy.int64]"),
        about_hash_texts);
  m.def("hash_texts", &HashTexts<std::int64_t>, "bytes"_a, "offsets"_a, "seed"_a,
        nb::sig("def hash_texts(bytes: NDArray[numpy.uint8], offsets: NDArray[numpy.int64], seed: "
                "int) -> NDArray[numpy.int64]"),
        about_hash_texts);
  nb::class_<FormatHandle>(m, "RecordFormat");
  m.def("multi_slot_format", &MultiSlotOf, "slots"_a,
        "Lines of slots (name, \"uint64\", \"float\" or \"text\", values per record or 0 for any "
        "number).");
  m.def(
      "read_binary_records",
      [](nb::bytes bytes, std::size_t begin, ColumnBatch& batch, std::size_t max_records) {
        const std::string_view all(bytes.c_str(), bytes.size());
        if (begin > all.size())
          Raise({Code::kInvalidArgument, "begin is beyond the end of the bytes"});
        auto used = [&] {
          nb::gil_scoped_release release;
          return ReadBinaryRecords(all.substr(begin), batch, max_records);
        }();
        return Check(std::move(used));
      },
      "bytes"_a, "begin"_a, "batch"_a, "max_records"_a,
      "Adds complete binary MultiSlot records until the batch has max_records or the next is "
      "cut off; returns the bytes used.");
  m.def(
      "criteo_format",
      [](bool hash_categories, bool log_counts, float missing_count, bool has_label) {
        return FormatHandle{MakeCriteo({hash_categories, log_counts, missing_count, has_label})};
      },
      "hash_categories"_a, "log_counts"_a, "missing_count"_a, "has_label"_a,
      "Lines of Criteo's click logs.");
  nb::class_<ColumnBatch>(m, "ColumnBatch")
      .def(
          "__init__",
          [](ColumnBatch* self, const FormatHandle& format) {
            new (self) ColumnBatch(format.format->columns());
          },
          "format"_a)
      .def("__len__", &ColumnBatch::num_records)
      .def("take", &TakeColumns,
           nb::sig("def take(self) -> list[tuple[NDArray[numpy.int64] | NDArray[numpy.float32] | "
                   "NDArray[numpy.uint8], NDArray[numpy.int64] | None]]"),
           "Returns columns as (values, offsets or None), which own their memory; empties the "
           "batch.");
  m.attr("BATCH_FULL") = static_cast<int>(ParseOutcome::kBatchFull);
  m.attr("BAD_LINE") = static_cast<int>(ParseOutcome::kBadLine);
  nb::class_<ParserHandle>(m, "RecordParser")
      .def(nb::init<const FormatHandle&, std::size_t>(), "format"_a, "max_line_bytes"_a)
      .def("begin_file", &ParserHandle::BeginFile, "skip_lines"_a = 0, "share"_a = 0,
           "num_shares"_a = 1, "Line n, from 0, is parsed if n % num_shares == share.")
      .def("feed", &ParserHandle::Feed, "block"_a)
      .def("finish", &ParserHandle::Finish)
      .def("parse", &ParserHandle::Parse, "batch"_a, "max_records"_a,
           "0: needs the next block; BATCH_FULL; BAD_LINE: bad_line was skipped.")
      .def_prop_ro("line", &ParserHandle::line)
      .def_prop_ro("bad_line", &ParserHandle::bad_line,
                   nb::sig("def bad_line(self) -> tuple[int, int, str, bytes]"),
                   "(line, column, what is wrong, text)");
}

}  // namespace sparsefleet::python
