// The kinds of channel, each in its own file; ChannelFactory::Create chooses.
#pragma once

#include <memory>
#include <string>

#include "status/status.h"
#include "transport/channel.h"
#include "transport/lane_memory.h"

namespace sparsefleet {

// Each side renews the key it sends with after `records_per_key` records.
Result<std::unique_ptr<ChannelFactory>> MakeTlsFactory(const std::string& job_key,
                                                       std::uint64_t records_per_key);
Result<std::unique_ptr<ChannelFactory>> MakePlainFactory(const std::string& job_key);
// Only over Unix sockets, see lane_socket.h. A server shares `capacity` bytes per direction with
// each client, of which only pages that a frame has filled take memory; longer frames are split.
Result<std::unique_ptr<ChannelFactory>> MakeLaneFactory(
    const std::string& job_key, std::size_t capacity = LaneMemory::kDefaultCapacity);

enum class Side : std::uint8_t { kServer, kClient };

// The messages of a failed handshake, the same for all kinds.
// kAuthFailed: the peer sent something, but not a proof of the key; `detail` may be empty.
Status KeyNotProven(std::string_view detail);
// The peer closed or broke the connection before proving the key. A server silently closes the
// connection of a peer with a different key, so to a client that has heard nothing, this is
// kAuthFailed too.
Status EndedInHandshake(Side side, bool heard_peer, std::string_view detail);

}  // namespace sparsefleet
