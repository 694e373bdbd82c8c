// The Python wrapper of a StoreCut.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "owner_process.h"
#include "store/store.h"
#include "sync/mutex.h"

namespace sparsefleet::python {

class CutHandle {
 public:
  // `store` outlives the cut.
  CutHandle(std::shared_ptr<Store> store, std::unique_ptr<StoreCut> cut, TableInfo info,
            CutCommit commit = CutCommit::kAtEnd)
      : store_(std::move(store)), cut_(std::move(cut)), info_(info), commit_(commit) {}
  CutHandle(const CutHandle&) = delete;
  CutHandle& operator=(const CutHandle&) = delete;
  ~CutHandle();

  nanobind::object Next(std::size_t max_rows);
  nanobind::object Removed();
  void Commit();
  void Close();

 private:
  // REQUIRES: a cut that Next() has ended with this status.
  void End(const Result<bool>& last) REQUIRES(mutex_);

  OwnerProcess owner_;
  std::shared_ptr<Store> store_;
  Mutex mutex_;
  std::unique_ptr<StoreCut> cut_ GUARDED_BY(mutex_);
  Result<std::vector<Key>> removed_ GUARDED_BY(mutex_) =
      Status(Code::kInvalidArgument, "the cut was closed before its end");  // without a cut
  TableInfo info_;
  const CutCommit commit_;
};

}  // namespace sparsefleet::python
