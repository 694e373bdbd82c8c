// Calls a store without the GIL, interruptible if it may wait long. Header only.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <utility>

#include "store/interrupt.h"
#include "store/store.h"
#include "store_handle.h"

namespace sparsefleet::python {

// Calls `f(store)` without the GIL. The reference that keeps the store alive may be the last one:
// it is dropped before the GIL is reacquired, even if `f` throws.
template <typename F>
auto Call(const StoreHandle& handle, F f) {
  std::shared_ptr<Store> store = handle.Get();
  nanobind::gil_scoped_release release;
  const std::shared_ptr<Store> held = std::move(store);
  return f(*held);
}

// Calls `f()`, which must be interruptible: a signal whose Python handler raises (Ctrl-C) ends the
// call, and `raised` takes the exception. Handlers run on the main thread only.
// REQUIRES: the GIL is not held.
template <typename F>
auto CheckSignalsDuring(std::optional<nanobind::python_error>& raised, F f) {
  const ScopedInterrupt interrupt([&raised] {
    nanobind::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) raised.emplace();
    return raised.has_value();
  });
  return f();
}

// Like Call(), for calls that may wait long; throws the exception of a signal handler.
template <typename F>
auto Wait(const StoreHandle& handle, F f) {
  std::optional<nanobind::python_error> raised;
  auto result = Call(
      handle, [&](Store& store) { return CheckSignalsDuring(raised, [&] { return f(store); }); });
  if (raised) throw nanobind::python_error(std::move(*raised));
  return result;
}

}  // namespace sparsefleet::python
