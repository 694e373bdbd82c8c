// Store's rounds, clocks and watched changes.
#include "bind_rounds.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bind.h"
#include "bind_cut.h"
#include "push_sections.h"
#include "raise.h"
#include "store/local_store.h"
#include "store_call.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsefleet::python {
namespace {

PushTotals PushRound(const StoreHandle& handle, const MemberOf& member, std::uint64_t round,
                     const std::vector<std::vector<PushTuple>>& batches,
                     const std::vector<PushTuple>& wanted, std::uint64_t step, double timeout_s,
                     const std::vector<DataTuple>& data) {
  const MergedSections merged(batches, wanted, data);
  return TotalsOf(Check(Wait(handle, [&](Store& s) {
    return merged.Merge([&](auto sections) {
      return s.PushRound(member.view(), round, sections, step, timeout_s);
    });
  })));
}

nb::object Contains(const StoreHandle& handle, const std::string& table,
                    const Array<const Key>& keys) {
  const std::size_t n = keys.size();
  auto known = std::make_unique<bool[]>(n);
  Check(Call(handle, [&](Store& store) -> Status {
    auto* local = dynamic_cast<LocalStore*>(&store);
    if (local == nullptr) {
      return {Code::kInvalidArgument, "contains: the tables of this store are on servers"};
    }
    auto sparse = local->tables().Sparse(table);
    if (!sparse.ok()) return sparse.status();
    return sparse.value()->Contains(SpanOf(keys), {known.get(), n});
  }));
  bool* data = known.release();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<bool*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, bool>(data, 1, &n, owner));
}

CutHandle* TakeChanges(const StoreHandle& handle, const std::string& table, std::uint32_t dim,
                       double timeout_s) {
  TableInfo info;
  info.dim = dim;
  auto changes = Check(Call(handle, [&](Store& s) { return s.TakeChanges(table, timeout_s); }));
  return new CutHandle(handle.Get(), std::move(changes), info);
}

}  // namespace

void BindRounds(nb::module_& m, nb::class_<StoreHandle>& store) {
  nb::class_<MemberOf>(m, "RoundMember", "See sparsefleet.store.RoundMember.")
      .def(nb::init<std::string, std::uint32_t, std::uint32_t, bool>(), "group"_a, "rank"_a,
           "size"_a, "continue_without_lost"_a);
  store
      .def("push_round", &PushRound, "member"_a, "round_number"_a, "batches"_a, "wanted"_a,
           "step"_a, "timeout_s"_a, "data"_a = std::vector<DataTuple>())
      .def(
          "advance_clock",
          [](const StoreHandle& h, const MemberOf& member, std::uint64_t clock,
             std::optional<std::uint64_t> bound, double timeout_s) {
            return Check(Wait(h, [&](Store& s) {
              return s.AdvanceClock(member.view(), clock, bound, timeout_s);
            }));
          },
          "member"_a, "clock"_a, "bound"_a.none(), "timeout_s"_a)
      .def(
          "leave_group",
          [](const StoreHandle& h, const MemberOf& member, double timeout_s) {
            Check(Call(h, [&](Store& s) { return s.LeaveGroup(member.view(), timeout_s); }));
          },
          "member"_a, "timeout_s"_a);
}

void BindChanges(nb::class_<StoreHandle>& store) {
  store
      .def(
          "watch_changes",
          [](const StoreHandle& h, const std::string& table, double timeout_s) {
            Check(Call(h, [&](Store& s) { return s.WatchChanges(table, timeout_s); }));
          },
          "table"_a, "timeout_s"_a)
      .def("take_changes", &TakeChanges, "table"_a, "dim"_a, "timeout_s"_a)
      .def("contains", &Contains, "table"_a, "keys"_a,
           nb::sig("def contains(self, table: str, keys: numpy.typing.NDArray[numpy.uint64]) -> "
                   "numpy.typing.NDArray[numpy.bool_]"));
}

}  // namespace sparsefleet::python
