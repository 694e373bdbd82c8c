// One request and its reply, moved over a channel without blocking.
// Not thread-safe.
#pragma once

#include <sys/uio.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "status/status.h"
#include "transport/channel.h"
#include "transport/frame.h"
#include "transport/messages.h"

namespace sparsefleet {

// Where a reply's body goes: with `in_parts`, into `parts` in order, which it must fill exactly;
// otherwise into `body`.
struct ReplyBuffer {
  bool in_parts = false;
  std::vector<std::span<std::byte>> parts;
  Body body;
};

class Exchange {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Sets `header.body_bytes`, and `timeout_ms` when the first byte goes out: the time left until
  // `reply_by`. The buffers of `body`, and `reply`, must stay valid until the exchange has ended or
  // is no longer stepped.
  void Begin(const FrameHeader& header, TimePoint reply_by, std::span<const iovec> body,
             ReplyBuffer& reply);

  bool is_active() const { return active_; }
  bool has_sent() const { return unsent_.empty(); }
  short wanted_events() const;  // for poll()

  // True when the reply is complete, see outcome(). After an error the channel is unusable.
  Result<bool> Step(Channel& channel, std::uint64_t max_reply_bytes);
  // Ok, or the error that the server replied with.
  const Status& outcome() const { return outcome_; }

 private:
  Status Send(Channel& channel);
  Result<bool> Receive(Channel& channel, std::uint64_t max_reply_bytes);
  Status TakeHead(std::uint64_t max_reply_bytes);
  // The next missing bytes of the reply's body; empty when it is complete.
  std::span<std::byte> Missing();

  bool active_ = false;
  Ready send_wants_ = Ready::kWantWrite;
  FrameHeader header_;
  TimePoint reply_by_;
  bool has_begun_ = false;
  std::array<std::byte, kFrameHeaderBytes> head_;
  std::vector<iovec> unsent_;  // the front one shrinks as it is sent
  ReplyBuffer* reply_ = nullptr;
  std::array<std::byte, kFrameHeaderBytes> reply_head_;
  std::size_t head_read_ = 0;
  std::optional<FrameHeader> reply_header_;
  Body error_body_;
  std::size_t part_ = 0;  // index into reply_->parts
  std::size_t read_ = 0;  // bytes read of that part, or of the body
  Status outcome_;
};

}  // namespace sparsefleet
