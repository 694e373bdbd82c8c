// A store as Python holds it: closed at most once, and not while a call is inside.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <memory>
#include <mutex>

#include "raise.h"
#include "store/store.h"

namespace sparsefleet::python {

class StoreHandle {
 public:
  explicit StoreHandle(std::shared_ptr<Store> store) : store_(std::move(store)), pid_(getpid()) {}
  StoreHandle(const StoreHandle&) = delete;
  StoreHandle& operator=(const StoreHandle&) = delete;
  // A fork has none of the threads that closing would join: there the store is leaked.
  ~StoreHandle() {
    if (getpid() != pid_) {
      new std::shared_ptr<Store>(std::move(store_));
      return;
    }
    nanobind::gil_scoped_release release;
    store_.reset();
  }

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
  pid_t pid_;
};

}  // namespace sparsefleet::python
