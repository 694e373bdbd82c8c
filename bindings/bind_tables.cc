// All tables of a store in this process, for saving and loading.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bind.h"
#include "bind_cut.h"
#include "bind_local.h"
#include "raise.h"
#include "store_call.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsefleet::python {
namespace {

// Calls `f(tables)` without the GIL.
template <typename F>
auto CallTables(const StoreHandle& handle, const char* call, F f) {
  using R = decltype(f(std::declval<TableSet&>()));
  return Check(Call(handle, [&](Store& store) -> R {
    auto local = LocalOf(store, call);
    if (!local.ok()) return local.status();
    return f(local.value()->tables());
  }));
}

CutCommit CommitOf(const std::string& when) {
  if (when == "at_end") return CutCommit::kAtEnd;
  if (when == "explicit") return CutCommit::kExplicit;
  Raise({Code::kInvalidArgument, "commit must be 'at_end' or 'explicit', got '" + when + "'"});
}

nb::dict OpenCuts(const StoreHandle& handle, bool only_dirty, bool clear_dirty,
                  const std::string& when, std::optional<std::vector<std::string>> names) {
  const CutCommit commit = CommitOf(when);
  std::map<std::string, TableInfo> infos;
  auto cuts = Check(Call(handle, [&](Store& store) -> Result<LocalStore::Cuts> {
    auto local = LocalOf(store, "open_cuts");
    if (!local.ok()) return local.status();
    auto opened = local.value()->OpenCuts(only_dirty, clear_dirty, commit, std::move(names));
    if (!opened.ok()) return opened;
    for (const auto& [name, cut] : opened.value()) {
      auto info = store.Info(name, 0);
      if (!info.ok()) return info.status();
      infos.emplace(name, info.value());
    }
    return opened;
  }));
  nb::dict all;
  for (auto& [name, cut] : cuts) {
    if (auto* rows = std::get_if<std::unique_ptr<StoreCut>>(&cut)) {
      auto* held = new CutHandle(handle.Get(), std::move(*rows), infos.at(name), commit);
      all[name.c_str()] = nb::cast(held, nb::rv_policy::take_ownership);
    } else {
      all[name.c_str()] = nb::cast(std::move(std::get<DenseCut>(cut)));
    }
  }
  return all;
}

void WriteDensePart(const StoreHandle& handle, const std::string& table, std::uint64_t begin,
                    const Array<const float>& values,
                    const std::optional<Matrix<const float>>& state) {
  std::optional<std::span<const float>> flat;
  if (state) {
    if (state->shape(0) > 0 && state->shape(1) != values.size()) {
      Raise({Code::kShapeMismatch,
             "table '" + table + "': " + std::to_string(values.size()) +
                 " values need a state of [S, " + std::to_string(values.size()) + "], got [" +
                 std::to_string(state->shape(0)) + ", " + std::to_string(state->shape(1)) + "]"});
    }
    flat = std::span(state->data(), state->size());
  }
  CallTables(handle, "write_dense_part", [&](TableSet& tables) {
    return tables.WriteDensePart(table, begin, SpanOf(values), flat);
  });
}

nb::object SpecOf(const StoreHandle& handle, const std::string& table) {
  using Spec = std::variant<SparseSpec, DenseSpec>;
  return nb::cast(CallTables(handle, "spec", [&](TableSet& tables) -> Result<Spec> {
    auto sparse = tables.Sparse(table);
    if (sparse.ok()) return Spec(sparse.value()->spec());
    auto dense = tables.Dense(table);
    if (dense.ok()) return Spec(dense.value()->spec());
    return dense.status();
  }));
}

void BindDenseCut(nb::module_& m) {
  nb::class_<DenseCut>(m, "DenseCut", "A copy of the held part of a dense table.")
      .def_ro("begin", &DenseCut::begin, "The first element's index in the whole table.")
      .def_prop_ro(
          "values",
          [](DenseCut& cut) {
            const std::size_t n = cut.values.size();
            return nb::ndarray<nb::numpy, float>(cut.values.data(), {n}, nb::find(cut));
          },
          nb::sig("def values(self) -> numpy.typing.NDArray[numpy.float32]"), "float32[n]")
      .def_prop_ro(
          "state",
          [](DenseCut& cut) {
            const std::size_t n = cut.values.size();
            const std::size_t rows = n == 0 ? 0 : cut.state.size() / n;
            return nb::ndarray<nb::numpy, float>(cut.state.data(), {rows, n}, nb::find(cut));
          },
          nb::sig("def state(self) -> numpy.typing.NDArray[numpy.float32]"),
          "float32[S, n], S floats of optimizer state per element");
}

}  // namespace

void BindTables(nb::module_& m, nb::class_<StoreHandle>& store) {
  BindDenseCut(m);
  store
      .def(
          "open_cuts", &OpenCuts, "only_dirty"_a, "clear_dirty"_a, "commit"_a = "at_end",
          "tables"_a = nb::none(),
          nb::sig("def open_cuts(self, only_dirty: bool, clear_dirty: bool, commit: str = "
                  "'at_end', tables: collections.abc.Sequence[str] | None = None) -> "
                  "dict[str, Cut | DenseCut]"),
          "Opens all tables, or those named, as of one moment that splits no push. With "
          "`clear_dirty` "
          "rows count as saved once their cut is at its end or, if commit is \"explicit\", has got "
          "commit().")
      .def(
          "read_dense_part",
          [](const StoreHandle& h, const std::string& table) {
            return CallTables(h, "read_dense_part",
                              [&](TableSet& tables) { return tables.ReadDensePart(table); });
          },
          "table"_a)
      .def("write_dense_part", &WriteDensePart, "table"_a, "begin"_a, "values"_a, "state"_a.none(),
           "Writes elements from `begin` on; None keeps their state.")
      .def(
          "clear",
          [](const StoreHandle& h, const std::string& table) {
            CallTables(h, "clear", [&](TableSet& tables) {
              auto sparse = tables.Sparse(table);
              if (sparse.ok()) sparse.value()->Clear();
              return sparse.status();
            });
          },
          "table"_a, "Removes all rows of a sparse table.")
      .def("table_names",
           [](const StoreHandle& h) {
             return CallTables(h, "table_names", [](TableSet& tables) {
               return Result<std::vector<std::string>>(tables.Names());
             });
           })
      .def("spec", &SpecOf, "table"_a,
           nb::sig("def spec(self, table: str) -> SparseSpec | DenseSpec"));
}

}  // namespace sparsefleet::python
