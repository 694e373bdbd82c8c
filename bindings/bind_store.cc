// Store: LocalStore and Client behind one class. Every call releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "bind.h"
#include "bind_cut.h"
#include "bind_local.h"
#include "bind_rounds.h"
#include "client/client.h"
#include "log_callback.h"
#include "push_sections.h"
#include "raise.h"
#include "store/local_store.h"
#include "store/store.h"
#include "store_call.h"
#include "store_handle.h"
#include "transport_name.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace sparsefleet::python {
namespace {

// (table, keys or None for a dense table, out)
using PullTuple = std::tuple<std::string, std::optional<Array<const Key>>, Array<float>>;
void Pull(const StoreHandle& handle, const std::vector<PullTuple>& parts, PullMode mode,
          std::uint64_t step, double timeout_s) {
  std::vector<PullSection> sections;
  sections.reserve(parts.size());
  for (const auto& [table, keys, out] : parts) {
    PullSection section;
    section.table = table;
    section.dense = !keys.has_value();
    if (keys) section.keys = SpanOf(*keys);
    section.out = SpanOf(out);
    sections.push_back(section);
  }
  Check(Call(handle, [&](Store& s) { return s.Pull(sections, mode, step, timeout_s); }));
}

PushTotals Push(const StoreHandle& handle, const std::vector<std::vector<PushTuple>>& batches,
                const std::vector<PushTuple>& wanted, std::uint64_t step, double timeout_s,
                const std::vector<DataTuple>& data) {
  const MergedSections merged(batches, wanted, data);
  return TotalsOf(Check(Call(handle, [&](Store& s) {
    return merged.Merge([&](auto sections) { return s.Push(sections, step, timeout_s); });
  })));
}

void Import(const StoreHandle& handle, const std::string& table, const Array<const Key>& keys,
            const Array<const float>& values, const Array<const float>& state,
            const Array<const std::uint32_t>& counters, double timeout_s) {
  const auto fill = [](auto& to, const auto& from) {
    to.assign(from.data(), from.data() + from.size());
  };
  Check(Call(handle, [&](Store& s) {
    RowBatch rows;
    fill(rows.keys, keys);
    fill(rows.values, values);
    fill(rows.state, state);
    fill(rows.counters, counters);
    return s.Import(table, rows, timeout_s);
  }));
}

CutHandle* OpenCut(const StoreHandle& handle, const std::string& table, bool only_dirty,
                   bool clear_dirty, double timeout_s) {
  const TableInfo info = Check(Call(handle, [&](Store& s) { return s.Info(table, timeout_s); }));
  auto cut = Check(
      Call(handle, [&](Store& s) { return s.OpenCut(table, only_dirty, clear_dirty, timeout_s); }));
  return new CutHandle(handle.Get(), std::move(cut), info);
}

StoreHandle* Connect(std::vector<std::string> endpoints, nb::bytes job_key,
                     const std::string& transport, std::string name, double connect_timeout_s,
                     double try_timeout_s, double heartbeat_interval_s, double peer_timeout_s,
                     std::uint64_t max_frame_bytes, nb::object log, double failover_wait_s,
                     std::string session, std::string restart_notes,
                     const std::string& wire_dtype) {
  ClientOptions options;
  options.endpoints = std::move(endpoints);
  options.security.job_key = std::string(job_key.c_str(), job_key.size());
  options.security.transport = TransportOf(transport);
  options.name = std::move(name);
  options.connect_timeout_s = connect_timeout_s;
  options.try_timeout_s = try_timeout_s;
  options.heartbeat_interval_s = heartbeat_interval_s;
  options.peer_timeout_s = peer_timeout_s;
  options.max_frame_bytes = max_frame_bytes;
  options.failover_wait_s = failover_wait_s;
  options.restart_notes = std::move(restart_notes);
  options.session = std::move(session);
  options.wire_dtype = WireDtypeOf(wire_dtype);
  options.log = LogCallback(std::move(log)).function();
  Result<std::unique_ptr<Client>> client = Status(Code::kInternal, "not connected");
  {
    nb::gil_scoped_release release;
    client = Client::Connect(std::move(options));
  }
  return new StoreHandle(Check(std::move(client)));
}

void BindCalls(nb::class_<StoreHandle>& store) {
  store
      .def(
          "define_sparse",
          [](const StoreHandle& h, const SparseSpec& spec, double timeout_s) {
            Check(Call(h, [&](Store& s) { return s.Define(spec, timeout_s); }));
          },
          "spec"_a, "timeout_s"_a)
      .def(
          "define_dense",
          [](const StoreHandle& h, const DenseSpec& spec, double timeout_s) {
            Check(Call(h, [&](Store& s) { return s.Define(spec, timeout_s); }));
          },
          "spec"_a, "timeout_s"_a)
      .def(
          "info",
          [](const StoreHandle& h, const std::string& table, double timeout_s) {
            return Check(Call(h, [&](Store& s) { return s.Info(table, timeout_s); }));
          },
          "table"_a, "timeout_s"_a)
      .def("pull", &Pull, "sections"_a, "mode"_a, "step"_a, "timeout_s"_a)
      .def("push", &Push, "batches"_a, "wanted"_a, "step"_a, "timeout_s"_a,
           "data"_a = std::vector<DataTuple>(),
           "Pushes the mean of the mini-batches, each a list of sections, and reads the requested "
           "rows.")
      .def(
          "write_dense",
          [](const StoreHandle& h, const std::string& table, const Array<const float>& values,
             double timeout_s) {
            Check(
                Call(h, [&](Store& s) { return s.WriteDense(table, SpanOf(values), timeout_s); }));
          },
          "table"_a, "values"_a, "timeout_s"_a)
      .def(
          "set_learning_rate",
          [](const StoreHandle& h, const std::string& table, double lr,
             std::optional<std::uint64_t> at, double timeout_s) {
            Check(Call(h, [&](Store& s) { return s.SetLearningRate(table, lr, at, timeout_s); }));
          },
          "table"_a, "learning_rate"_a, "at"_a.none(), "timeout_s"_a)
      .def(
          "shrink",
          [](const StoreHandle& h, const std::string& table, std::uint64_t step, double timeout_s) {
            return Check(Wait(h, [&](Store& s) { return s.Shrink(table, step, timeout_s); }));
          },
          "table"_a, "step"_a, "timeout_s"_a)
      .def(
          "erase",
          [](const StoreHandle& h, const std::string& table, const Array<const Key>& keys,
             double timeout_s) {
            return Check(
                Call(h, [&](Store& s) { return s.Erase(table, SpanOf(keys), timeout_s); }));
          },
          "table"_a, "keys"_a, "timeout_s"_a)
      .def("open_cut", &OpenCut, "table"_a, "only_dirty"_a, "clear_dirty"_a, "timeout_s"_a)
      .def("import_rows", &Import, "table"_a, "keys"_a, "values"_a, "state"_a, "counters"_a,
           "timeout_s"_a);
}

void BindMeeting(nb::class_<StoreHandle>& store) {
  store
      .def(
          "version",
          [](const StoreHandle& h, const std::string& table, double timeout_s) {
            return Check(Call(h, [&](Store& s) { return s.Version(table, timeout_s); }));
          },
          "table"_a, "timeout_s"_a)
      .def(
          "wait_version",
          [](const StoreHandle& h, const std::string& table, std::uint64_t at_least,
             double timeout_s) {
            Check(Wait(h, [&](Store& s) { return s.WaitVersion(table, at_least, timeout_s); }));
          },
          "table"_a, "at_least"_a, "timeout_s"_a)
      .def(
          "barrier",
          [](const StoreHandle& h, const std::string& name, std::uint32_t members,
             double timeout_s) {
            Check(Wait(h, [&](Store& s) { return s.Barrier(name, members, timeout_s); }));
          },
          "name"_a, "members"_a, "timeout_s"_a)
      .def(
          "put_note",
          [](const StoreHandle& h, const std::string& key, nb::bytes value, double timeout_s) {
            const std::string_view view(value.c_str(), value.size());
            Check(Call(h, [&](Store& s) { return s.PutNote(key, view, timeout_s); }));
          },
          "key"_a, "value"_a, "timeout_s"_a)
      .def(
          "get_note",
          [](const StoreHandle& h, const std::string& key, bool wait, double timeout_s) {
            const std::string value =
                Check(Wait(h, [&](Store& s) { return s.GetNote(key, wait, timeout_s); }));
            return nb::bytes(value.data(), value.size());
          },
          "key"_a, "wait"_a, "timeout_s"_a)
      .def(
          "get_notes",
          [](const StoreHandle& h, const std::vector<std::string>& keys, double timeout_s) {
            const std::vector<std::string_view> views(keys.begin(), keys.end());
            const auto values =
                Check(Call(h, [&](Store& s) { return s.GetNotes(views, timeout_s); }));
            std::vector<std::optional<nb::bytes>> found;
            for (const auto& value : values) {
              found.push_back(value ? std::optional(nb::bytes(value->data(), value->size()))
                                    : std::nullopt);
            }
            return found;
          },
          "keys"_a, "timeout_s"_a)
      .def(
          "delete_note",
          [](const StoreHandle& h, const std::string& key, double timeout_s) {
            Check(Call(h, [&](Store& s) { return s.DeleteNote(key, timeout_s); }));
          },
          "key"_a, "timeout_s"_a)
      .def(
          "stats",
          [](const StoreHandle& h, double timeout_s) {
            return Check(Call(h, [&](Store& s) { return s.Stats(timeout_s); }));
          },
          "timeout_s"_a)
      .def(
          "command",
          [](const StoreHandle& h, std::uint32_t server, const std::string& name, nb::bytes body,
             double timeout_s) {
            const std::span bytes(static_cast<const std::byte*>(body.data()), body.size());
            const auto reply =
                Check(Wait(h, [&](Store& s) { return s.Command(server, name, bytes, timeout_s); }));
            return nb::bytes(reply.data(), reply.size());
          },
          "server"_a, "name"_a, "body"_a, "timeout_s"_a)
      .def(
          "shutdown",
          [](const StoreHandle& h, double timeout_s) {
            Check(Call(h, [&](Store& s) { return s.Shutdown(timeout_s); }));
          },
          "timeout_s"_a);
}

}  // namespace

void BindStore(nb::module_& m) {
  nb::class_<TableInfo>(m, "TableInfo", "The shape of a table.")
      .def_ro("dense", &TableInfo::dense)
      .def_ro("size", &TableInfo::size)
      .def_ro("dim", &TableInfo::dim)
      .def_ro("state_dim", &TableInfo::state_dim)
      .def_ro("counter_dim", &TableInfo::counter_dim);
  nb::class_<StoreHandle> store(
      m, "Store",
      "Tables in this process or on servers; see sparsefleet.store for the public API.");
  store
      .def_static(
          "local", [] { return new StoreHandle(std::make_shared<LocalStore>()); },
          "Tables in this process.")
      .def_static("connect", &Connect, "endpoints"_a, nb::kw_only(), "job_key"_a, "transport"_a,
                  "name"_a, "connect_timeout_s"_a, "try_timeout_s"_a, "heartbeat_interval_s"_a,
                  "peer_timeout_s"_a, "max_frame_bytes"_a, "log"_a.none(),
                  "failover_wait_s"_a = 0.0, "session"_a = "", "restart_notes"_a = "",
                  "wire_dtype"_a = "float32", "Tables on servers.")
      .def(
          "applied_data",
          [](const StoreHandle& h, double timeout_s) {
            auto all = Check(Call(h, [&](Store& s) { return s.AppliedData(timeout_s); }));
            std::vector<std::vector<DataTuple>> tuples;
            for (const auto& marks : all) {
              auto& one = tuples.emplace_back();
              for (const DataMark& mark : marks) {
                one.emplace_back(mark.stream, mark.epoch, mark.begin, mark.end);
              }
            }
            return tuples;
          },
          "timeout_s"_a, "By server: the data (stream, epoch, begin, end) that it has applied.")
      .def(
          "adopt_data",
          [](const StoreHandle& h, const std::vector<std::vector<DataTuple>>& by_server,
             double timeout_s) {
            std::vector<std::vector<DataMark>> marks;
            marks.reserve(by_server.size());
            for (const auto& one : by_server) marks.push_back(MarksOf(one));
            Check(Call(h, [&](Store& s) { return s.AdoptData(marks, timeout_s); }));
          },
          "by_server"_a, "timeout_s"_a,
          "Account for data (stream, epoch, begin, end) that was applied in other sessions.")
      .def(
          "keep_session",
          [](const StoreHandle& h, bool keeps) {
            Call(h, [&](Store& s) { s.KeepSession(keeps); });
          },
          "keeps"_a, "Whether a named session outlives this store.")
      .def_prop_ro(
          "num_servers",
          [](const StoreHandle& h) { return Call(h, [](Store& s) { return s.num_servers(); }); })
      .def_prop_rw(
          "step", [](const StoreHandle& h) { return h.step()->load(); },
          [](StoreHandle& h, std::uint64_t step) { h.step()->store(step); },
          "The step of the latest push.")
      .def(
          "next_step", [](StoreHandle& h) { return h.step()->fetch_add(1) + 1; },
          "Counts one more push; returns its step.")
      .def("close", &StoreHandle::Close, "Ends the connections; calls after it raise. Idempotent.");
  BindCalls(store);
  BindMeeting(store);
  BindLocal(m, store);
  BindTables(m, store);
  BindRounds(m, store);
  BindChanges(store);
}

}  // namespace sparsefleet::python
