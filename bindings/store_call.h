// How the module calls a store: without the GIL, and with a way out of long waits. Header only.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <utility>

#include "store/interrupt.h"
#include "store/store.h"
#include "store_handle.h"

namespace sparsefleet::python {

// Calls `f(store)` without the GIL. The reference that keeps the store alive for as long may be
// the last one: it is dropped before the GIL is taken again, also where `f` throws.
template <typename F>
auto Call(const StoreHandle& handle, F f) {
  std::shared_ptr<Store> store = handle.Get();
  nanobind::gil_scoped_release release;
  const std::shared_ptr<Store> held = std::move(store);
  return f(*held);
}

// As Call(), for calls that may wait for long: a signal whose Python handler raises (Ctrl-C) ends
// the call, and its exception is thrown. Handlers run on the main thread only.
template <typename F>
auto Wait(const StoreHandle& handle, F f) {
  std::optional<nanobind::python_error> raised;
  auto result = Call(handle, [&](Store& store) {
    const ScopedInterrupt interrupt([&raised] {
      nanobind::gil_scoped_acquire gil;
      if (PyErr_CheckSignals() != 0) raised.emplace();
      return raised.has_value();
    });
    return f(store);
  });
  if (raised) throw nanobind::python_error(std::move(*raised));
  return result;
}

}  // namespace sparsefleet::python
