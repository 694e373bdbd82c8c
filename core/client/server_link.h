// A client's view of one server: its address, its incarnation, whether it answers, and idle
// connections to it.
// Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/connection.h"
#include "status/status.h"
#include "sync/mutex.h"
#include "transport/channel.h"
#include "transport/messages.h"
#include "transport/socket.h"

namespace sparsefleet {

using SteadyClock = std::chrono::steady_clock;

// Options shared by the links of a client.
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

  // An idle connection, or null.
  std::unique_ptr<Connection> TakeIdle();
  std::unique_ptr<Connection> OpenNew(bool control = false);
  // Returns a connection to the pool. REQUIRES: no exchange in progress, the last one succeeded.
  void GiveBack(std::unique_ptr<Connection> connection);
  void CloseIdle();

  // Whether the server has answered hello: the key is right and its limits are known.
  bool was_greeted() const { return incarnation_ != 0; }
  // The largest request or reply body; `by_server`: the server imposes the limit.
  struct FrameLimit {
    std::uint64_t bytes = 0;
    bool by_server = false;
  };
  FrameLimit frame_limit() const;
  // The server considers this client lost after this much silence; infinite before the greeting.
  double server_patience_s() const { return server_patience_s_; }

  // Records that a complete message has just arrived from the server.
  void Heard();
  SteadyClock::duration Silence() const;  // since then

  // Set by the heartbeat when the server has been silent for too long.
  void SetLost(bool lost) { lost_ = lost; }
  bool is_lost() const { return lost_; }

  // Looks up the server's name again, on another thread and at most once a second, since a server
  // that cannot be reached may have moved.
  void LookUpAgain();

  // ConnectionHost.
  ResolvedEndpoint address() const override;
  Result<std::unique_ptr<Channel>> MakeChannel(int fd, bool on_lane) override;
  Body MakeHello(bool control) const override;
  Status Greeted(const HelloReply& reply) override;
  std::uint64_t max_reply_bytes() const override { return options_.max_frame_bytes; }
  std::optional<std::string> lane() const override;
  bool has_lane() const;
  bool AsksForLane(int fd) const override;
  void SetLane(std::string name) override;
  void LaneFailed() override;

 private:
  // Shared with the thread that looks the name up, which may outlive the link.
  struct Whereabouts {
    Mutex mutex;
    ResolvedEndpoint address GUARDED_BY(mutex);
    bool is_asking GUARDED_BY(mutex) = false;
    SteadyClock::time_point asked GUARDED_BY(mutex);
  };
  // More threads may call at once; only this many connections are kept.
  static constexpr std::size_t kMaxIdle = 64;

  const std::uint32_t index_;
  const Endpoint endpoint_;
  const std::shared_ptr<Whereabouts> whereabouts_;
  const LinkOptions options_;
  std::atomic<std::uint64_t> incarnation_{0};
  std::atomic<std::uint64_t> server_max_frame_bytes_{UINT64_MAX};
  std::atomic<double> server_patience_s_{std::numeric_limits<double>::infinity()};
  std::atomic<SteadyClock::duration> last_heard_;
  std::atomic<bool> lost_{false};
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Connection>> idle_ GUARDED_BY(mutex_);
  // The name of the host lane; empty: there is none; nullopt: not known yet.
  std::optional<std::string> lane_ GUARDED_BY(mutex_);
  bool lane_was_used_ GUARDED_BY(mutex_) = false;
};

}  // namespace sparsefleet
