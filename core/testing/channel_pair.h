// Two ends of one connection in one thread, for tests of channels and their users.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <memory>
#include <optional>
#include <string>

#include "testing/check.h"
#include "transport/channel.h"
#include "transport/socket.h"

namespace sparsefleet::testing {

inline const std::string kTestKey = "a job key of thirty-two bytes ok";

inline SecurityOptions Security(TransportKind kind, const std::string& key = kTestKey) {
  return {kind, key};
}

inline std::unique_ptr<ChannelFactory> MakeFactory(const SecurityOptions& options) {
  return RequireOk(ChannelFactory::Create(options));
}

// Connected stream sockets; `buffer_bytes` > 0 asks for small socket buffers.
inline std::array<int, 2> SocketPair(int buffer_bytes = 0) {
  std::array<int, 2> fds{};
  Require(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds.data()) == 0, "socketpair");
  if (buffer_bytes > 0) {
    for (const int fd : fds) {
      ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof(buffer_bytes));
      ::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof(buffer_bytes));
    }
  }
  return fds;
}

// Waits until one of the two can proceed; fails the test after ten seconds.
inline void AwaitEither(int a, Ready a_wants, int b, Ready b_wants) {
  const auto events = [](Ready ready) -> short {
    return ready == Ready::kWantRead ? POLLIN : ready == Ready::kWantWrite ? POLLOUT : 0;
  };
  std::array<pollfd, 2> entries = {pollfd{a_wants == Ready::kDone ? -1 : a, events(a_wants), 0},
                                   pollfd{b_wants == Ready::kDone ? -1 : b, events(b_wants), 0}};
  Require(::poll(entries.data(), 2, 10'000) > 0, "neither end can proceed");
}

struct HandshakeOutcome {
  Status client;
  Status server;
};

// Drives both handshakes to completion. An end that fails closes its socket, as real ones do.
inline HandshakeOutcome ShakeHands(std::unique_ptr<Channel>& client,
                                   std::unique_ptr<Channel>& server) {
  HandshakeOutcome outcome;
  const auto step = [](std::unique_ptr<Channel>& end, Status& status) {
    if (!end) return Ready::kDone;
    const auto ready = end->Handshake();
    if (ready.ok()) return ready.value();
    status = ready.status();
    end.reset();
    return Ready::kDone;
  };
  for (;;) {
    const Ready client_wants = step(client, outcome.client);
    const Ready server_wants = step(server, outcome.server);
    if (client_wants == Ready::kDone && server_wants == Ready::kDone) return outcome;
    AwaitEither(client ? client->fd() : -1, client_wants, server ? server->fd() : -1, server_wants);
  }
}

struct ChannelPair {
  std::unique_ptr<Channel> client;
  std::unique_ptr<Channel> server;
};

// A pair that has completed the handshake.
inline ChannelPair ConnectedPair(TransportKind kind, int buffer_bytes = 0) {
  const auto factory = MakeFactory(Security(kind));
  const auto fds = SocketPair(buffer_bytes);
  ChannelPair pair{RequireOk(factory->Connect(fds[0])), RequireOk(factory->Accept(fds[1]))};
  const auto outcome = ShakeHands(pair.client, pair.server);
  RequireOk(outcome.client);
  RequireOk(outcome.server);
  return pair;
}

}  // namespace sparsefleet::testing
