// The Python face of a StoreCut.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>
#include <vector>

#include "owner_process.h"
#include "store/store.h"

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
  // REQUIRES: mutex_ is held, and there is a cut, which Next() has ended with this.
  void End(const Result<bool>& last);

  OwnerProcess owner_;
  std::shared_ptr<Store> store_;
  std::mutex mutex_;
  std::unique_ptr<StoreCut> cut_;
  Result<std::vector<Key>> removed_ =
      Status(Code::kInvalidArgument, "the cut was closed before its end");  // without a cut
  TableInfo info_;
  const CutCommit commit_;
};

}  // namespace sparsefleet::python
