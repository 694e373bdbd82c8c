// A listening socket of a server.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "server/poller.h"
#include "status/status.h"
#include "transport/socket.h"

namespace sparsefleet {

// Thread-safe.
class Acceptor {
 public:
  // Gets a connected socket, which it owns from then on, and the address of its peer, if it has
  // one.
  using OnSocket = std::function<void(OwnedSocket socket, std::string address)>;

  // `token`: how the poller reports it.
  Acceptor(Poller& poller, std::uint64_t token) : poller_(poller), token_(token) {}
  ~Acceptor() { Close(); }

  Status Listen(OwnedSocket listening);

  // Accepts what waits, some at a time, and listens on. An ok status, or why nothing more
  // can be accepted now (say, no file descriptors left); then Resume() is to be called later.
  Status AcceptSome(const OnSocket& on_socket);
  void Resume();
  void Close();

 private:
  Poller& poller_;
  const std::uint64_t token_;
  std::mutex mutex_;
  OwnedSocket socket_;  // guarded by mutex_
};

}  // namespace sparsefleet
