// The Unix sockets of host lanes: names, listening, who is at the other end, handing over memory.
// Linux only; elsewhere nothing listens.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "status/status.h"
#include "transport/socket.h"

namespace sparsefleet {

// A non-blocking listening socket under a name nobody else has, in the abstract namespace: it
// leaves no file behind, and is not seen from other network namespaces.
struct LaneListener {
  OwnedSocket socket;
  std::string name;
};
Result<LaneListener> ListenOnLane();

// Where a Dialer finds the lane. `endpoint` is what messages call it.
ResolvedEndpoint LaneAddress(const std::string& name, const Endpoint& endpoint);

// kAuthFailed unless the process at the other end runs as the same user as this one.
Status CheckSameUser(int fd);

// Sends the bytes with a descriptor; true when done, false if the socket takes none now.
Result<bool> SendWithDescriptor(int fd, std::span<const std::byte> bytes, int descriptor);
// Fills `out` and gives the descriptor that came along; nothing if it is not there yet.
Result<std::optional<OwnedSocket>> ReceiveWithDescriptor(int fd, std::span<std::byte> out);

}  // namespace sparsefleet
