// The process that created a native object with threads and sockets.
//
// A fork shares the sockets but has none of the threads: there the object must be neither used nor
// destroyed, or the parent's connections break. A fork leaks its copy.
#pragma once

#include <unistd.h>

#include <string>
#include <utility>

#include "raise.h"

namespace sparsefleet::python {

class OwnerProcess {
 public:
  bool IsForked() const { return getpid() != pid_; }

  // Raises in a fork. `what` names the object.
  void Check(const char* what) const {
    if (!IsForked()) return;
    Raise(Status(Code::kInvalidArgument, std::string("this ") + what + " was created in process " +
                                             std::to_string(pid_) +
                                             " and cannot be used in its fork " +
                                             std::to_string(getpid()) + ": create a new one here"));
  }

 private:
  pid_t pid_ = getpid();
};

// Keeps `owned` forever.
template <typename T>
void Leak(T owned) {
  [[maybe_unused]] auto* kept = new T(std::move(owned));
}

}  // namespace sparsefleet::python
