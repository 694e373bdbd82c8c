// Tells threads which sockets are ready. One-shot: a socket that was reported stays silent
// until it is armed again, so that one thread at a time looks after it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "status/status.h"

namespace sparsefleet {

// Thread-safe. Any number of threads may wait.
class Poller {
 public:
  static Result<std::unique_ptr<Poller>> Create();
  ~Poller();

  // Watches `fd`, which is reported as `token`; not armed yet.
  Status Add(int fd, std::uint64_t token);
  // Reports `fd` once, when it becomes (or is) readable or writable as asked, or broken.
  // REQUIRES: fd was added.
  void Arm(int fd, std::uint64_t token, bool read, bool write);
  // Call before the socket is closed.
  void Remove(int fd);

  // The token of the next socket that is ready; nothing after Stop(). A token may
  // still be reported just after Remove().
  std::optional<std::uint64_t> Wait();
  // Wakes all waiting threads, for good.
  void Stop();

 private:
  struct Impl;
  explicit Poller(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sparsefleet
