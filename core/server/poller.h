// Reports which sockets are ready. One-shot: a reported socket stays silent until it is armed
// again, so that one thread at a time handles it.
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

  // Watches `fd` under `token`, without arming it.
  Status Add(int fd, std::uint64_t token);
  // Reports `fd` once, when it is readable or writable as asked, or broken.
  // REQUIRES: fd was added.
  void Arm(int fd, std::uint64_t token, bool read, bool write);
  // Call this before closing the socket.
  void Remove(int fd);

  // The token of the next ready socket; empty after Stop(). A token may still be reported just
  // after Remove().
  std::optional<std::uint64_t> Wait();
  // Wakes all waiting threads permanently.
  void Stop();

 private:
  struct Impl;
  explicit Poller(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sparsefleet
