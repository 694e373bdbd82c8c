// Accepts clients on the server's own host and user, see docs/wire_format.md, "Host lane".
#pragma once

#include <memory>
#include <string>

#include "status/status.h"
#include "transport/channel.h"
#include "transport/channel_kinds.h"
#include "transport/lane_socket.h"

namespace sparsefleet {

struct HostLane {
  LaneListener listener;
  std::unique_ptr<ChannelFactory> channels;
};

// kIo where the system has no such sockets or no shared memory.
inline Result<HostLane> OpenHostLane(const std::string& job_key) {
  // Tested here, so that no client is offered a lane that does not work.
  if (auto memory = LaneMemory::Create(); !memory.ok()) return memory.status();
  auto channels = MakeLaneFactory(job_key);
  if (!channels.ok()) return channels.status();
  auto listener = ListenOnLane();
  if (!listener.ok()) return listener.status();
  return HostLane{std::move(listener).value(), std::move(channels).value()};
}

}  // namespace sparsefleet
