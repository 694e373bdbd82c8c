// A connected, non-blocking socket that proves the job key and then carries bytes.
//
// Nothing here waits: each call does what it can and says what the socket must become ready
// for. The server drives channels from its poller, the client from poll() with a deadline.
// Not thread-safe: one thread at a time, except Shutdown().
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "status/status.h"
#include "transport/security.h"

namespace sparsefleet {

enum class Ready : std::uint8_t { kDone, kWantRead, kWantWrite };

struct Progress {
  Ready ready = Ready::kDone;  // kDone: `bytes` moved (0 from Read: the peer closed in order)
  std::size_t bytes = 0;
};

class Channel {
 public:
  virtual ~Channel() = default;  // closes the socket

  // Call until kDone. kAuthFailed where the peer does not prove the key; a stranger learns
  // nothing else from us.
  virtual Result<Ready> Handshake() = 0;

  // Reads into `out` what is there. kPeerLost if the connection broke.
  virtual Result<Progress> Read(std::span<std::byte> out) = 0;

  // Writes the buffers one after another as far as the socket takes them; `bytes` says how far.
  // After kWantWrite/kWantRead call again with the same bytes first (buffers may have moved).
  virtual Result<Progress> Write(std::span<const iovec> buffers) = 0;

  // Memory of the channel's own for the next `size` bytes that are written, or nothing where there
  // is none: bytes put there and then given to Write() as its first buffer are not copied.
  // Aligned to 8.
  virtual std::span<std::byte> Reserve(std::size_t size);

  // True if Read() would give bytes without the socket being readable (TLS holds decrypted ones).
  virtual bool HasBufferedInput() const = 0;

  virtual int fd() const = 0;
  // Ends both directions of the socket, so that a thread in poll() wakes. Any thread.
  void Shutdown();
};

// What both ends of a job share; made once, used for every connection.
// Thread-safe.
class ChannelFactory {
 public:
  // Of connections over TCP. kInvalidArgument for a key that is too short.
  static Result<std::unique_ptr<ChannelFactory>> Create(const SecurityOptions& options);
  virtual ~ChannelFactory() = default;

  // Takes ownership of `fd`, a connected stream socket; sets it non-blocking.
  virtual Result<std::unique_ptr<Channel>> Accept(int fd) = 0;
  virtual Result<std::unique_ptr<Channel>> Connect(int fd) = 0;
};

}  // namespace sparsefleet
