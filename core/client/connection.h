// One connection to a server: dialing, greeting, then one exchange after another. Uses the host
// lane where there is one, TCP otherwise.
//
// Never blocks: Step() does what the socket allows. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "client/exchange.h"
#include "status/status.h"
#include "transport/channel.h"
#include "transport/socket.h"

namespace sparsefleet {

// What a connection needs from its ServerLink.
class ConnectionHost {
 public:
  virtual ~ConnectionHost() = default;
  virtual ResolvedEndpoint address() const = 0;
  virtual Result<std::unique_ptr<Channel>> MakeChannel(int fd, bool on_lane) = 0;
  virtual Body MakeHello(bool control) const = 0;
  // Handles the answer to hello: kServerRestarted if the server has restarted since the last one.
  virtual Status Greeted(const HelloReply& reply) = 0;
  virtual std::uint64_t max_reply_bytes() const = 0;

  // The server's host lane, if this client can use it.
  virtual std::optional<std::string> lane() const = 0;
  // Whether to ask the server for its lane over a connection with this socket.
  virtual bool AsksForLane(int fd) const = 0;
  virtual void SetLane(std::string name) = 0;  // empty: the server has none
  virtual void LaneFailed() = 0;               // no connection could be made
};

class Connection {
 public:
  // `host` must outlive the connection. `control`: the heartbeat connection.
  Connection(ConnectionHost& host, bool control) : host_(host), control_(control) {}

  // Begins an exchange, see Exchange::Begin. On a new connection it waits for the greeting.
  // Not sent if the server greets with a session other than `only_session` (0: any).
  // REQUIRES: no exchange in progress.
  void Begin(const FrameHeader& header, Exchange::TimePoint reply_by, std::span<const iovec> body,
             ReplyBuffer& reply, std::uint64_t only_session = 0) {
    only_session_ = only_session;
    exchange_.Begin(header, reply_by, body, reply);
  }

  // Makes progress: true when the reply is complete, see outcome(). After an error, including one
  // that the server sent instead of a greeting, the connection is unusable.
  Result<bool> Step();
  const Status& outcome() const { return exchange_.outcome(); }

  // The server's session for this client, once greeted.
  std::uint64_t session() const { return session_; }
  bool is_other_session() const {
    return is_greeted() && only_session_ != 0 && session_ != only_session_;
  }

  bool is_active() const { return exchange_.is_active(); }
  bool is_greeted() const { return phase_ == Phase::kReady; }
  bool is_on_lane() const { return on_lane_; }

  // For poll(). fd() is -1 before the first Step().
  int fd() const;
  short wanted_events() const;

 private:
  enum class Phase : std::uint8_t { kStart, kDialing, kShaking, kGreeting, kAsking, kReady };

  // Each returns true when its phase is over.
  Result<bool> StepPhase();
  bool Start();
  Result<bool> Dial();
  Result<bool> Shake();
  Result<bool> Greet();
  Result<bool> Ask();
  // The first exchanges are the connection's own (hello, lane).
  void BeginOwn(MessageType type, Body body);

  ConnectionHost& host_;
  const bool control_;
  Phase phase_ = Phase::kStart;
  bool on_lane_ = false;
  bool avoids_lane_ = false;
  bool asks_ = false;
  std::uint64_t session_ = 0;
  std::uint64_t only_session_ = 0;
  std::optional<Dialer> dialer_;
  std::unique_ptr<Channel> channel_;
  Ready shake_wants_ = Ready::kWantWrite;
  Body own_body_;
  ReplyBuffer own_reply_;
  Exchange own_;
  Exchange exchange_;
};

}  // namespace sparsefleet
