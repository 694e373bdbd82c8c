// Counters of a running server. Header only.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "store/store.h"
#include "transport/frame.h"

namespace sparsefleet {

// Thread-safe.
struct ServerCounters {
  using Count = std::atomic<std::uint64_t>;
  Count connections_total{0};
  Count lane_connections_total{0};  // those over shared memory, from this host
  Count clients_lost{0};
  Count strangers_refused{0};
  Count unproven_dropped{0};  // displaced by newer ones before proving the key
  Count protocol_errors{0};
  Count requests_total{0};
  struct Traffic {
    Count bytes_in{0};
    Count bytes_out{0};
  };
  Traffic socket;
  Traffic lane;  // through shared memory, from this host
  std::array<Count, 256> requests{};

  void CountRequest(MessageType type) {
    requests_total.fetch_add(1, std::memory_order_relaxed);
    requests[static_cast<std::uint8_t>(type)].fetch_add(1, std::memory_order_relaxed);
  }

  void AddTo(StatMap& stats) const {
    const auto add = [&](const std::string& name, const Count& count) {
      stats["server." + name] = static_cast<double>(count.load(std::memory_order_relaxed));
    };
    add("connections_total", connections_total);
    add("lane_connections_total", lane_connections_total);
    add("clients_lost", clients_lost);
    add("strangers_refused", strangers_refused);
    add("unproven_dropped", unproven_dropped);
    add("protocol_errors", protocol_errors);
    add("requests_total", requests_total);
    add("socket_bytes_in", socket.bytes_in);
    add("socket_bytes_out", socket.bytes_out);
    add("lane_bytes_in", lane.bytes_in);
    add("lane_bytes_out", lane.bytes_out);
    for (const std::string way : {"bytes_in", "bytes_out"}) {
      stats["server." + way] = stats["server.socket_" + way] + stats["server.lane_" + way];
    }
    for (std::size_t type = 0; type < requests.size(); ++type) {
      if (requests[type].load(std::memory_order_relaxed) == 0) continue;
      std::string name = MessageName(static_cast<MessageType>(type));
      for (char& letter : name) letter = letter == ' ' ? '_' : letter;
      add("requests." + name, requests[type]);
    }
  }
};

}  // namespace sparsefleet
