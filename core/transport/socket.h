// Sockets: names to addresses, listening, connecting, waiting.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

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

}  // namespace sparsefleet
