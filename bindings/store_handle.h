// A store as Python holds it: closed at most once, and never during a call.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "owner_process.h"
#include "raise.h"
#include "store/store.h"
#include "sync/mutex.h"

namespace sparsefleet::python {

class StoreHandle {
 public:
  explicit StoreHandle(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  StoreHandle(const StoreHandle&) = delete;
  StoreHandle& operator=(const StoreHandle&) = delete;
  ~StoreHandle() { Drop(std::move(store_)); }

  // The store, kept alive during a call; raises once closed, and in a fork.
  std::shared_ptr<Store> Get() const {
    owner_.Check("store");
    MutexLock lock(mutex_);
    if (store_ == nullptr) Raise(Status(Code::kInvalidArgument, "the store is closed"));
    return store_;
  }

  // The step of the latest push, shared by all that push to the store.
  const std::shared_ptr<std::atomic<std::uint64_t>>& step() const { return step_; }

  void Close() {
    owner_.Check("store");
    std::shared_ptr<Store> last;
    {
      MutexLock lock(mutex_);
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
  mutable Mutex mutex_;
  std::shared_ptr<Store> store_ GUARDED_BY(mutex_);
  const std::shared_ptr<std::atomic<std::uint64_t>> step_ =
      std::make_shared<std::atomic<std::uint64_t>>(0);
};

}  // namespace sparsefleet::python
