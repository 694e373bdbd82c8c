// The listening socket of a server.
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
  static constexpr std::uint64_t kToken = 0;  // how the poller reports it
  // Gets a connected socket, which it owns from then on, and the address of its peer.
  using OnSocket = std::function<void(OwnedSocket socket, std::string address)>;

  explicit Acceptor(Poller& poller) : poller_(poller) {}
  ~Acceptor() { Close(); }

  Status Listen(const Endpoint& endpoint);
  std::uint16_t port() const { return port_; }

  // Accepts what waits, some at a time, and listens on. An ok status, or why nothing more
  // can be accepted now (say, no file descriptors left); then Resume() is to be called later.
  Status AcceptSome(const OnSocket& on_socket);
  void Resume();
  void Close();

 private:
  Poller& poller_;
  std::uint16_t port_ = 0;
  std::mutex mutex_;
  OwnedSocket socket_;  // guarded by mutex_
};

}  // namespace sparsefleet
