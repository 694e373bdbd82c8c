#include "client/connection.h"

#include <poll.h>

#include "transport/lane_socket.h"

namespace sparsefleet {

int Connection::fd() const {
  if (channel_) return channel_->fd();
  return dialer_ ? dialer_->fd() : -1;
}

short Connection::wanted_events() const {
  switch (phase_) {
    case Phase::kStart:
    case Phase::kDialing:
      return POLLOUT;
    case Phase::kShaking:
      return shake_wants_ == Ready::kWantRead ? POLLIN : POLLOUT;
    case Phase::kGreeting:
    case Phase::kAsking:
      return own_.wanted_events();
    case Phase::kReady:
      break;
  }
  return exchange_.wanted_events();
}

Result<bool> Connection::Step() {
  while (phase_ != Phase::kReady) {
    auto over = StepPhase();
    if (!over.ok() && on_lane_ && phase_ <= Phase::kShaking) {
      host_.LaneFailed();
      avoids_lane_ = true;
      channel_.reset();
      phase_ = Phase::kStart;
      continue;
    }
    if (!over.ok() || !over.value()) return over;
    phase_ = static_cast<Phase>(static_cast<int>(phase_) + 1);
  }
  if (is_other_session()) {
    return Status(Code::kPeerLost,
                  "the server has forgotten this client, which was silent for too long");
  }
  return exchange_.Step(*channel_, host_.max_reply_bytes());
}

Result<bool> Connection::StepPhase() {
  switch (phase_) {
    case Phase::kStart:
      return Start();
    case Phase::kDialing:
      return Dial();
    case Phase::kShaking:
      return Shake();
    case Phase::kGreeting:
      return Greet();
    case Phase::kAsking:
      return Ask();
    case Phase::kReady:
      break;
  }
  return true;
}

bool Connection::Start() {
  // Heartbeats stay on TCP: there are few of them, and less can go wrong.
  const auto lane = control_ || avoids_lane_ ? std::nullopt : host_.lane();
  on_lane_ = lane.has_value();
  dialer_.emplace(on_lane_ ? LaneAddress(*lane, host_.address().endpoint) : host_.address());
  return true;
}

Result<bool> Connection::Dial() {
  auto step = dialer_->Step();
  if (!step.ok()) return step.status();
  if (!step.value()) return false;
  auto channel = host_.MakeChannel(step.value()->Release(), on_lane_);
  if (!channel.ok()) return channel.status();
  channel_ = std::move(channel).value();
  dialer_.reset();
  return true;
}

Result<bool> Connection::Shake() {
  auto ready = channel_->Handshake();
  if (!ready.ok()) return ready.status();
  shake_wants_ = ready.value();
  if (shake_wants_ != Ready::kDone) return false;
  BeginOwn(MessageType::kHello, host_.MakeHello(control_));
  return true;
}

void Connection::BeginOwn(MessageType type, Body body) {
  own_body_ = std::move(body);
  FrameHeader header;
  header.type = type;
  const iovec buffer{own_body_.data(), own_body_.size()};
  own_.Begin(header, Exchange::TimePoint::max(), {&buffer, 1}, own_reply_);
}

Result<bool> Connection::Greet() {
  auto whole = own_.Step(*channel_, host_.max_reply_bytes());
  if (!whole.ok() || !whole.value()) return whole;
  if (!own_.outcome().ok()) return own_.outcome();
  auto reply = DecodeHelloReply(own_reply_.body);
  if (!reply.ok()) return reply.status();
  if (Status s = host_.Greeted(reply.value()); !s.ok()) return s;
  session_ = reply.value().session;
  asks_ = !on_lane_ && !control_ && host_.AsksForLane(channel_->fd());
  if (asks_) BeginOwn(MessageType::kLane, EncodeText(PeerAddress(channel_->fd())));
  return true;
}

Result<bool> Connection::Ask() {
  if (!asks_) return true;
  auto whole = own_.Step(*channel_, host_.max_reply_bytes());
  if (!whole.ok() || !whole.value()) return whole;
  const auto name = DecodeText(own_reply_.body);
  const bool is_told = own_.outcome().ok() && name.ok();
  host_.SetLane(is_told ? std::string(name.value()) : std::string());
  // A server that does not know the request closes the connection after its answer.
  return is_told ? Result<bool>(true) : Status(Code::kPeerLost, "the server offers no host lane");
}

}  // namespace sparsefleet
