// A connected, non-blocking socket that proves the job key and then carries bytes.
//
// Never blocks: each call does what it can and says what the socket must become ready for. The
// server drives channels from its poller, the client from poll() with a deadline. Not thread-safe:
// one thread at a time, except Shutdown().
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
  Ready ready = Ready::kDone;  // kDone: `bytes` moved (0 from Read: the peer closed cleanly)
  std::size_t bytes = 0;
};

class Channel {
 public:
  virtual ~Channel() = default;  // closes the socket

  // Call until kDone. kAuthFailed if the peer does not prove the key; an unauthenticated peer
  // learns nothing else from us.
  virtual Result<Ready> Handshake() = 0;

  // On the server, during the handshake: whether the peer's first message was valid and has been
  // answered. Only a peer with the key can create such a message, though anyone can replay one.
  virtual bool HasAnswered() const = 0;

  // Reads available bytes into `out`. kPeerLost if the connection broke.
  virtual Result<Progress> Read(std::span<std::byte> out) = 0;

  // Writes the buffers in order as far as the socket accepts them; `bytes` says how far. After
  // kWantWrite/kWantRead call again with the same bytes first (buffers may have moved).
  virtual Result<Progress> Write(std::span<const iovec> buffers) = 0;

  // The channel's own memory for the next `size` bytes to write, or empty if it has none: bytes
  // placed there and passed to Write() as the first buffer are not copied. Aligned to 8.
  virtual std::span<std::byte> Reserve(std::size_t size);

  // Whether Read() would return bytes without the socket being readable (TLS holds decrypted ones).
  virtual bool HasBufferedInput() const = 0;

  virtual int fd() const = 0;
  // Shuts down both directions of the socket, which wakes a thread in poll(). Any thread.
  void Shutdown();
};

// Creates channels; built once per job and used for every connection.
// Thread-safe.
class ChannelFactory {
 public:
  // For connections over TCP. kInvalidArgument for a key that is too short.
  static Result<std::unique_ptr<ChannelFactory>> Create(const SecurityOptions& options);
  virtual ~ChannelFactory() = default;

  // Takes ownership of `fd`, a connected stream socket; sets it non-blocking.
  virtual Result<std::unique_ptr<Channel>> Accept(int fd) = 0;
  virtual Result<std::unique_ptr<Channel>> Connect(int fd) = 0;

  // How often its channels have renewed their sending keys.
  virtual std::uint64_t key_updates() const { return 0; }
};

}  // namespace sparsefleet
