// CSV with a schema.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind.h"
#include "format_handle.h"
#include "parse/csv.h"
#include "raise.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsefleet::python {
namespace {

// (name, whether its values are floats, values per record or 0, hash seed, list separator or "",
// missing id, missing float)
using SlotTuple = std::tuple<std::string, bool, std::uint32_t, std::optional<std::uint64_t>,
                             std::string, std::optional<std::int64_t>, std::optional<float>>;
// (name, slot or None, index of the field in the slot)
using FieldTuple = std::tuple<std::string, std::optional<std::uint32_t>, std::uint32_t>;

char ByteOf(const std::string& text, const char* noun) {
  if (text.size() > 1) {
    Raise({Code::kInvalidArgument, std::string(noun) + " must be one byte, got '" + text + "'"});
  }
  return text.empty() ? '\0' : text[0];
}

FormatHandle CsvOf(const std::string& separator, const std::string& quote,
                   std::vector<std::string> missing_texts, const std::vector<SlotTuple>& slots,
                   const std::vector<FieldTuple>& fields) {
  CsvOptions options;
  options.separator = ByteOf(separator, "separator");
  options.quote = ByteOf(quote, "quote");
  options.missing_texts = std::move(missing_texts);
  for (const auto& [name, is_float, width, seed, list, missing_id, missing_float] : slots) {
    options.slots.push_back({{name, is_float ? ValueKind::kFloat : ValueKind::kUint64, width},
                             seed,
                             ByteOf(list, "the list separator"),
                             missing_id,
                             missing_float});
  }
  for (const auto& [name, slot, index] : fields) {
    options.fields.push_back({name, slot.value_or(CsvField::kUnused), index});
  }
  return {Check(MakeCsv(std::move(options)))};
}

}  // namespace

void BindCsv(nb::module_& m) {
  m.def("csv_format", &CsvOf, "separator"_a, "quote"_a, "missing_texts"_a, "slots"_a, "fields"_a,
        "Lines of fields. Slots: (name, floats?, values per record or 0, seed or None, "
        "list separator, missing id, missing float); fields: (name, slot or None, index).");
}

}  // namespace sparsefleet::python
