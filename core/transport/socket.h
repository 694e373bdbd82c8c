// Sockets: names to addresses, listening, connecting, waiting.
#pragma once

#include <netdb.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "status/status.h"

namespace sparsefleet {

struct Endpoint {
  std::string host;
  std::uint16_t port = 0;
  std::string ToString() const;  // "host:port", "[v6]:port"
};

// "host:port" or "[v6]:port"; kInvalidArgument saying what is wrong with `text`.
Result<Endpoint> ParseEndpoint(std::string_view text);

// A non-blocking listening socket (SO_REUSEADDR). kIo: "cannot listen on 1.2.3.4:80: address in use".
Result<int> Listen(const Endpoint& endpoint, int backlog = 1024);
Result<std::uint16_t> BoundPort(int fd);

// A connected non-blocking socket, TCP_NODELAY set; kDeadlineExceeded or kPeerLost naming the endpoint.
Result<int> ConnectTo(const Endpoint& endpoint, double timeout_s);

// Options every connection has: non-blocking, close-on-exec, TCP_NODELAY, no SIGPIPE, keep-alive.
Status PrepareSocket(int fd);

void CloseSocket(int fd);

// "connection reset by peer" for an errno value; safe in any thread.
std::string ErrnoText(int error);

// A socket closed when its owner goes.
class OwnedSocket {
 public:
  explicit OwnedSocket(int fd = -1) : fd_(fd) {}
  OwnedSocket(OwnedSocket&& other) noexcept : fd_(other.Release()) {}
  OwnedSocket& operator=(OwnedSocket&& other) noexcept;
  ~OwnedSocket();

  int fd() const { return fd_; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// A connection being made, without waiting: the addresses of a host one after another.
// Finding the addresses may wait for a name server. Not thread-safe.
class Dialer {
 public:
  // kPeerLost if the host has no address.
  static Result<Dialer> Start(const Endpoint& endpoint);

  // The connected socket (see PrepareSocket), or nothing while under way: call again when fd()
  // is writable. kPeerLost naming the endpoint when the last address has failed.
  Result<std::optional<OwnedSocket>> Step();
  int fd() const { return socket_.fd(); }

 private:
  struct AddressesDeleter {
    void operator()(addrinfo* list) const { freeaddrinfo(list); }
  };

  // The error of beginning to connect to the present address; 0 or EINPROGRESS if it goes on.
  int Begin();

  std::string prefix_;
  std::unique_ptr<addrinfo, AddressesDeleter> addresses_;
  const addrinfo* at_ = nullptr;
  OwnedSocket socket_;
};

}  // namespace sparsefleet
