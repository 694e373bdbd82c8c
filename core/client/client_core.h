// State shared by all calls of a client. Kept alive by the client and its open cuts.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "client/heartbeat.h"
#include "client/log_queue.h"
#include "client/row_scratch.h"
#include "client/sequences.h"
#include "client/server_link.h"
#include "client/table_directory.h"
#include "client/watched_tables.h"
#include "store/left_groups.h"

namespace sparsefleet {

struct ClientCore {
  ClientCore(ClientOptions given, std::vector<ResolvedEndpoint> servers, LinkOptions link_options);
  ~ClientCore();

  std::uint32_t num_servers() const { return static_cast<std::uint32_t>(links.size()); }
  Sequences& SequencesOf(MessageType type) {
    return windows[static_cast<std::size_t>(WindowOf(type))];
  }
  // Whether pulls and pushes of this server move 16-bit numbers now.
  bool SendsBf16(std::uint32_t server) const {
    return options.wire_dtype == WireDtype::kBf16 && !links[server]->has_lane();
  }
  // A seed for the roundings of one push: a function of the client's name, the push's step and the
  // number of pushes before it.
  std::uint64_t NextRoundingSeed(std::uint64_t step);
  void Log(int severity, const std::string& message) const {
    if (options.log) options.log(severity, message);
  }

  const ClientOptions options;
  std::vector<std::unique_ptr<ServerLink>> links;  // in server order; the list never changes
  std::array<Sequences, kNumWindows> windows;
  std::atomic<std::uint64_t> next_request_id{1};
  std::atomic<std::uint64_t> num_rounded{0};  // pushes
  TableDirectory tables;
  ScratchPool scratch;
  LeftGroups left_groups;
  WatchedTables watched;
  std::unique_ptr<LogQueue> log_queue;   // for the heartbeat's log lines
  std::unique_ptr<Heartbeat> heartbeat;  // starts once every server has been reached
};

}  // namespace sparsefleet
