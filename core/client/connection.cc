#include "client/connection.h"

#include <poll.h>

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
      return hello_.wanted_events();
    case Phase::kReady:
      break;
  }
  return exchange_.wanted_events();
}

Result<bool> Connection::Step() {
  for (;;) {
    Result<bool> over = false;
    switch (phase_) {
      case Phase::kStart:
        dialer_.emplace(host_.address());
        over = true;
        break;
      case Phase::kDialing:
        over = Dial();
        break;
      case Phase::kShaking:
        over = Shake();
        break;
      case Phase::kGreeting:
        over = Greet();
        break;
      case Phase::kReady:
        if (is_other_session()) {
          return Status(Code::kPeerLost,
                        "the server has forgotten this client, which was away for too long");
        }
        return exchange_.Step(*channel_, host_.max_reply_bytes());
    }
    if (!over.ok() || !over.value()) return over;
    phase_ = static_cast<Phase>(static_cast<int>(phase_) + 1);
  }
}

Result<bool> Connection::Dial() {
  auto step = dialer_->Step();
  if (!step.ok()) return step.status();
  if (!step.value()) return false;
  auto channel = host_.MakeChannel(step.value()->Release());
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
  hello_body_ = host_.MakeHello(control_);
  FrameHeader header;
  header.type = MessageType::kHello;
  const iovec body{hello_body_.data(), hello_body_.size()};
  hello_.Begin(header, Exchange::TimePoint::max(), {&body, 1}, hello_reply_);
  return true;
}

Result<bool> Connection::Greet() {
  auto whole = hello_.Step(*channel_, host_.max_reply_bytes());
  if (!whole.ok() || !whole.value()) return whole;
  if (!hello_.outcome().ok()) return hello_.outcome();
  auto reply = DecodeHelloReply(hello_reply_.body);
  if (!reply.ok()) return reply.status();
  if (Status s = host_.Greeted(reply.value()); !s.ok()) return s;
  session_ = reply.value().session;
  return true;
}

}  // namespace sparsefleet
