// All that a client knows of one server: where it is, which life it is in, whether it
// answers, and the connections to it that are not in use.
// Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "client/connection.h"
#include "status/status.h"
#include "transport/channel.h"
#include "transport/messages.h"
#include "transport/socket.h"

namespace sparsefleet {

using SteadyClock = std::chrono::steady_clock;

// What the links of one client share.
struct LinkOptions {
  std::uint64_t client_id = 0;
  std::string client_name;
  std::uint32_t num_servers = 1;
  std::uint64_t max_frame_bytes = 0;
  std::shared_ptr<ChannelFactory> channels;
  std::shared_ptr<ChannelFactory> lane_channels;  // null: host lanes are not used
};

class ServerLink final : public ConnectionHost {
 public:
  ServerLink(std::uint32_t index, ResolvedEndpoint address, LinkOptions options);

  std::uint32_t index() const { return index_; }
  std::string Describe() const;  // "server 2 (10.0.0.7:9100)"

  // A connection that was used before and given back, or nothing.
  std::unique_ptr<Connection> TakeIdle();
  std::unique_ptr<Connection> OpenNew(bool control = false);
  // REQUIRES: no exchange under way, the last one did not fail.
  void GiveBack(std::unique_ptr<Connection> connection);
  void CloseIdle();

  // The server has answered hello at least once: it knows our key, and we its limits.
  bool was_greeted() const { return incarnation_ != 0; }
  // Bodies of requests and replies may have this many bytes; `by_server`: whose limit it is.
  struct FrameLimit {
    std::uint64_t bytes = 0;
    bool by_server = false;
  };
  FrameLimit frame_limit() const;
  // The server counts this client as lost after so long a silence; infinite before the greeting.
  double server_patience_s() const { return server_patience_s_; }

  // Something whole came from the server just now.
  void Heard();
  SteadyClock::duration Silence() const;  // since then

  // Set by the heartbeat when the server has been silent for too long.
  void SetLost(bool lost) { lost_ = lost; }
  bool is_lost() const { return lost_; }

  // ConnectionHost.
  const ResolvedEndpoint& address() const override { return address_; }
  Result<std::unique_ptr<Channel>> MakeChannel(int fd, bool on_lane) override;
  Body MakeHello(bool control) const override;
  Status Greeted(const HelloReply& reply) override;
  std::uint64_t max_reply_bytes() const override { return options_.max_frame_bytes; }
  std::optional<std::string> lane() const override;
  bool AsksForLane(int fd) const override;
  void LaneTold(std::string name) override;
  void LaneFailed() override;

 private:
  // More threads than this may call at once; only their connections are not all kept.
  static constexpr std::size_t kMaxIdle = 64;

  const std::uint32_t index_;
  const ResolvedEndpoint address_;
  const LinkOptions options_;
  std::atomic<std::uint64_t> incarnation_{0};
  std::atomic<std::uint64_t> server_max_frame_bytes_{UINT64_MAX};
  std::atomic<double> server_patience_s_{std::numeric_limits<double>::infinity()};
  std::atomic<SteadyClock::duration> last_heard_;
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;  // guards what follows
  std::vector<std::unique_ptr<Connection>> idle_;
  // The name of the host lane; empty: there is none; nothing: it is not known.
  std::optional<std::string> lane_;
  bool lane_was_used_ = false;
};

}  // namespace sparsefleet
