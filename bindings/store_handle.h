// A store as Python holds it: closed at most once, and not while a call is inside.
#pragma once

#include <memory>
#include <mutex>

#include "raise.h"
#include "store/store.h"

namespace sparsefleet::python {

class StoreHandle {
 public:
  explicit StoreHandle(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  // The store, kept alive for the length of a call; raises once closed.
  std::shared_ptr<Store> Get() const {
    std::lock_guard lock(mutex_);
    if (store_ == nullptr) Raise(Status(Code::kInvalidArgument, "the store is closed"));
    return store_;
  }
  // The last reference, to be dropped without the GIL.
  std::shared_ptr<Store> Take() {
    std::lock_guard lock(mutex_);
    return std::move(store_);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Store> store_;
};

}  // namespace sparsefleet::python
