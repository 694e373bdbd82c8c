// Sockets: name resolution, listening, connecting, waiting.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "status/status.h"

namespace sparsefleet {

// A host and a port, or the path of a file that holds an address as "host:port": a server whose
// address may change is found there whenever it is looked up.
struct Endpoint {
  std::string host;  // or an absolute path, with port 0
  std::uint16_t port = 0;
  bool is_file() const { return host.starts_with('/'); }
  std::string ToString() const;  // "host:port", "[v6]:port", "/path"
};

// "host:port", "[v6]:port" or "/path"; kInvalidArgument saying what is wrong with `text`.
Result<Endpoint> ParseEndpoint(std::string_view text);

// Where to connect to. Messages show the endpoint.
struct ResolvedEndpoint {
  struct Address {
    sockaddr_storage bytes{};
    socklen_t size = 0;
    int protocol = 0;
  };
  Endpoint endpoint;
  std::vector<Address> addresses;  // in the order to try them
};
// Asks the system for the addresses of a host; may wait long for a name server. kPeerLost if there
// are none. With `only_numeric` it does not wait, and a name or file has no address.
Result<ResolvedEndpoint> Resolve(const Endpoint& endpoint, bool only_numeric = false);

// A non-blocking listening socket (SO_REUSEADDR). kIo: "cannot listen on 1.2.3.4:80: address in
// use".
Result<int> Listen(const Endpoint& endpoint, int backlog = 1024);
Result<std::uint16_t> BoundPort(int fd);

// A connected non-blocking socket, TCP_NODELAY set; kDeadlineExceeded or kPeerLost naming the
// endpoint.
Result<int> ConnectTo(const Endpoint& endpoint, double timeout_s);

// Options of every connection: non-blocking, close-on-exec, TCP_NODELAY, no SIGPIPE, keep-alive.
Status PrepareSocket(int fd);

// "10.0.0.7:9100", "[::1]:9100" of a socket's own end or its peer; empty if it has none.
std::string LocalAddress(int fd);
std::string PeerAddress(int fd);
std::string AddressText(const sockaddr_storage& address);
// The unit of limits per address: an IPv4 address, or the /64 network of an IPv6 address, since one
// host can use all addresses of such a network. Empty for other sockets.
std::string AddressGroup(const sockaddr_storage& address);
// Whether both ends have the same address, so that they are on one host.
bool ConnectsToOwnHost(int fd);

void CloseSocket(int fd);

// "connection reset by peer" for an errno value; safe in any thread.
std::string ErrnoText(int error);

// Owns a socket and closes it on destruction.
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

// Connects without blocking: tries the addresses of a host one after another.
// Not thread-safe.
class Dialer {
 public:
  explicit Dialer(ResolvedEndpoint to) : to_(std::move(to)) {}

  // The connected socket (see PrepareSocket), or nothing while in progress: call again when fd() is
  // writable. kPeerLost naming the endpoint when the last address has failed.
  Result<std::optional<OwnedSocket>> Step();
  int fd() const { return socket_.fd(); }

 private:
  // The error of starting to connect to the current address; 0 or EINPROGRESS if it continues.
  int Begin();

  ResolvedEndpoint to_;
  std::size_t at_ = 0;  // index into to_.addresses
  OwnedSocket socket_;
};

}  // namespace sparsefleet
