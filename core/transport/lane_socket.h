// The Unix sockets of host lanes: names, listening, peer credentials, passing memory.
// Linux only; elsewhere nothing listens.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "status/status.h"
#include "transport/socket.h"

namespace sparsefleet {

// A non-blocking listening socket under a unique name in the abstract namespace: it leaves no file
// behind and is invisible in other network namespaces.
struct LaneListener {
  OwnedSocket socket;
  std::string name;
};
Result<LaneListener> ListenOnLane();

// Where a Dialer finds the lane. `endpoint` is its name in messages.
ResolvedEndpoint LaneAddress(const std::string& name, const Endpoint& endpoint);

// kAuthFailed unless the process at the other end runs as the same user as this one.
Status CheckSameUser(int fd);

// Sends the bytes with a descriptor; true when done, false if the socket is not writable now.
Result<bool> SendWithDescriptor(int fd, std::span<const std::byte> bytes, int descriptor);
// Fills `out` and returns the descriptor sent along; empty if it has not arrived yet.
Result<std::optional<OwnedSocket>> ReceiveWithDescriptor(int fd, std::span<std::byte> out);

}  // namespace sparsefleet
