// Open cuts: rows as of one moment, in chunks, as NumPy columns.
#include "bind_cut.h"

#include <nanobind/nanobind.h>

#include "bind.h"
#include "raise.h"
#include "sync/mutex.h"

namespace nb = nanobind;

namespace sparsefleet::python {

namespace {

nb::object RowsToNumpy(RowBatch rows, const TableInfo& info) {
  const std::size_t n = rows.keys.size();
  return nb::make_tuple(ToNumpy(std::move(rows.keys), {n}),
                        ToNumpy(std::move(rows.values), {n, info.dim}),
                        ToNumpy(std::move(rows.state), {n, info.state_dim}),
                        ToNumpy(std::move(rows.counters), {n, info.counter_dim}));
}

}  // namespace

// Ending a cut calls a server, and the cut may hold the last reference to its store.
CutHandle::~CutHandle() {
  if (owner_.IsForked()) {
    Leak(std::move(cut_));
    Leak(std::move(store_));
    return;
  }
  nb::gil_scoped_release release;
  cut_.reset();
  store_.reset();
}

nb::object CutHandle::Next(std::size_t max_rows) {
  owner_.Check("cut");
  RowBatch rows;
  Result<bool> more = false;
  {
    nb::gil_scoped_release release;
    MutexLock lock(mutex_);
    if (cut_ != nullptr) {
      more = cut_->Next(max_rows, rows);
      if (!more.ok() || !more.value()) End(more);
    }
  }
  if (!Check(std::move(more))) return nb::none();
  return RowsToNumpy(std::move(rows), info_);
}

void CutHandle::End(const Result<bool>& last) {
  if (last.ok()) {
    if (commit_ == CutCommit::kExplicit) return;  // it keeps watching its rows until then
    removed_ = cut_->Removed();
  }
  cut_.reset();
}

nb::object CutHandle::Removed() {
  owner_.Check("cut");
  Result<std::vector<Key>> removed = std::vector<Key>();
  {
    nb::gil_scoped_release release;
    MutexLock lock(mutex_);
    removed = cut_ != nullptr ? cut_->Removed() : removed_;
  }
  auto keys = Check(std::move(removed));
  const std::size_t n = keys.size();
  return ToNumpy(std::move(keys), {n});
}

void CutHandle::Commit() {
  owner_.Check("cut");
  Status status(Code::kInvalidArgument, "the cut is closed and cannot be committed");
  {
    nb::gil_scoped_release release;
    MutexLock lock(mutex_);
    if (cut_ != nullptr) status = cut_->Commit();
  }
  Check(status);
}

void CutHandle::Close() {
  if (owner_.IsForked()) return;  // left for the parent to close; a fork's generators end here
  nb::gil_scoped_release release;
  MutexLock lock(mutex_);
  cut_.reset();
}

void BindCut(nb::module_& m) {
  nb::class_<CutHandle>(m, "Cut")
      .def("next", &CutHandle::Next, nb::arg("max_rows"),
           nb::sig("def next(self, max_rows: int) -> tuple | None"),
           "Up to `max_rows` further rows as (keys[N], values[N, D], state[N, S], counters[N, C]),"
           " or None at the end.")
      .def("removed", &CutHandle::Removed,
           nb::sig("def removed(self) -> numpy.typing.NDArray[numpy.uint64]"),
           "For a cut of dirty rows in this process: keys removed since the last clearing cut.")
      .def("commit", &CutHandle::Commit,
           "For a cut opened with commit=\"explicit\" and read to its end: clears what it was "
           "opened "
           "to clear. Without a commit, closing clears nothing.")
      .def("close", &CutHandle::Close, "Ends the cut and frees its memory.");
}

}  // namespace sparsefleet::python
