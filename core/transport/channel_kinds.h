// The kinds of channel, each in a file of its own; ChannelFactory::Create chooses.
#pragma once

#include <memory>
#include <string>

#include "status/status.h"
#include "transport/channel.h"
#include "transport/lane_memory.h"

namespace sparsefleet {

Result<std::unique_ptr<ChannelFactory>> MakeTlsFactory(const std::string& job_key);
Result<std::unique_ptr<ChannelFactory>> MakePlainFactory(const std::string& job_key);
// Over Unix sockets alone, see lane_socket.h. A server shares `capacity` bytes a direction with
// each client, of which those are taken that a frame has filled; longer frames go in pieces.
Result<std::unique_ptr<ChannelFactory>> MakeLaneFactory(
    const std::string& job_key, std::size_t capacity = LaneMemory::kDefaultCapacity);

enum class Side : std::uint8_t { kServer, kClient };

// The messages of a failed handshake, the same for all kinds.
// kAuthFailed: the peer sent something, but not a proof of the key; `detail` may be empty.
Status KeyNotProven(std::string_view detail);
// The peer closed or broke the connection before the key was proven. A server closes on whoever
// has another key without a byte, so to a client that heard nothing this is kAuthFailed too.
Status EndedInHandshake(Side side, bool heard_peer, std::string_view detail);

}  // namespace sparsefleet
