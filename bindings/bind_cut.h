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
  CutHandle(std::shared_ptr<Store> store, std::unique_ptr<StoreCut> cut, TableInfo info)
      : store_(std::move(store)), cut_(std::move(cut)), info_(info) {}
  CutHandle(const CutHandle&) = delete;
  CutHandle& operator=(const CutHandle&) = delete;
  ~CutHandle();

  nanobind::object Next(std::size_t max_rows);
  nanobind::object Removed();
  void Close();

 private:
  void End();  // REQUIRES: mutex_ is held, there is a cut

  OwnerProcess owner_;
  std::shared_ptr<Store> store_;
  std::mutex mutex_;
  std::unique_ptr<StoreCut> cut_;
  std::vector<Key> removed_;  // once the cut has come to its end
  TableInfo info_;
};

}  // namespace sparsefleet::python
