// recv() and send() on a non-blocking socket, with the outcomes moved, not ready, ended, broken.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace sparsefleet {

enum class IoOutcome : std::uint8_t { kMoved, kNotReady, kEnd, kBroken };

struct IoResult {
  IoOutcome outcome = IoOutcome::kMoved;
  std::size_t bytes = 0;  // kMoved: > 0
  int error = 0;          // kBroken: errno
};

// Interrupted calls are repeated. kEnd: the peer will send no more.
IoResult ReceiveSome(int fd, std::span<std::byte> out);

// Never raises SIGPIPE, whatever the process does with that signal.
// REQUIRES: the buffers hold at least one byte.
IoResult SendSome(int fd, std::span<const iovec> buffers);

}  // namespace sparsefleet
