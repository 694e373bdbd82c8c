// A store as Python holds it: closed at most once, and not while a call is inside.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>

#include "owner_process.h"
#include "raise.h"
#include "store/store.h"

namespace sparsefleet::python {

class StoreHandle {
 public:
  explicit StoreHandle(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  StoreHandle(const StoreHandle&) = delete;
  StoreHandle& operator=(const StoreHandle&) = delete;
  ~StoreHandle() { Drop(std::move(store_)); }

  // The store, kept alive for the length of a call; raises once closed, and in a fork.
  std::shared_ptr<Store> Get() const {
    owner_.Check("store");
    std::lock_guard lock(mutex_);
    if (store_ == nullptr) Raise(Status(Code::kInvalidArgument, "the store is closed"));
    return store_;
  }

  void Close() {
    owner_.Check("store");
    std::shared_ptr<Store> last;
    {
      std::lock_guard lock(mutex_);
      last = std::move(store_);
    }
    Drop(std::move(last));
  }

 private:
  // Closing joins threads that may need the GIL to log.
  void Drop(std::shared_ptr<Store> last) const {
    if (owner_.IsForked()) {
      Leak(std::move(last));
      return;
    }
    nanobind::gil_scoped_release release;
    last.reset();
  }

  OwnerProcess owner_;
  mutable std::mutex mutex_;
  std::shared_ptr<Store> store_;
};

}  // namespace sparsefleet::python
