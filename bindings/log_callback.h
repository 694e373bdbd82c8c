// A Python callable as the log function of servers and clients.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>
#include <memory>
#include <string>

namespace sparsefleet::python {

using LogFunction = std::function<void(int, const std::string&)>;

// Holds a Python callable (or None) so that any native thread may call it and any thread may drop
// the last copy. An exception in it is reported as unraisable, not propagated.
class LogCallback {
 public:
  explicit LogCallback(nanobind::object callable);

  // The function for native code; shares the callable. Empty for None.
  LogFunction function() const;

  // Releases the callable; later messages are dropped. Breaks the cycle of a callable that refers
  // to the object that logs. REQUIRES: the GIL is held.
  void Clear();

 private:
  struct Cell;
  std::shared_ptr<Cell> cell_;
};

}  // namespace sparsefleet::python
