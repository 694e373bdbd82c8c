// A client that builds frames by hand, for tests of servers: it can send what no real client would.
#pragma once

#include <poll.h>

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "testing/check.h"
#include "transport/channel.h"
#include "transport/frame.h"
#include "transport/messages.h"
#include "transport/socket.h"

namespace sparsefleet::testing {

inline constexpr int kWireDeadlineMs = 20'000;

struct WireReply {
  FrameHeader header;
  Body body;
  Status status;  // of an error reply
};

// Not thread-safe. Every wait fails the test after kWireDeadlineMs.
class WireClient {
 public:
  // Connects and proves the key. The channel is null if that failed: see handshake().
  WireClient(std::uint16_t port, const SecurityOptions& security) {
    const auto factory = RequireOk(ChannelFactory::Create(security));
    const int fd = RequireOk(ConnectTo({"127.0.0.1", port}, 20.0));
    channel_ = RequireOk(factory->Connect(fd));
    for (;;) {
      auto ready = channel_->Handshake();
      if (!ready.ok()) {
        handshake_ = ready.status();
        return;
      }
      if (ready.value() == Ready::kDone) return;
      Await(ready.value());
    }
  }

  const Status& handshake() const { return handshake_; }
  Channel& channel() { return *channel_; }
  void Close() { channel_.reset(); }

  WireReply Hello(std::uint64_t client_id, const std::string& name, bool control = false,
                  std::uint32_t index = 0, std::uint32_t num_servers = 1) {
    HelloRequest hello;
    hello.client_id = client_id;
    hello.client_name = name;
    hello.control = control;
    hello.server_index = index;
    hello.num_servers = num_servers;
    return Call(MessageType::kHello, Encode(hello));
  }

  // Sends a request; recorded types get `sequence`. Returns its id.
  std::uint64_t Request(MessageType type, const Body& body, std::uint64_t sequence = 0,
                        std::uint32_t timeout_ms = 20'000, std::uint64_t acked_below = 0) {
    FrameHeader header;
    header.type = type;
    header.request_id = next_request_++;
    header.sequence = sequence;
    header.acked_below = acked_below;
    header.timeout_ms = timeout_ms;
    header.body_bytes = static_cast<std::uint32_t>(body.size());
    std::vector<std::byte> frame(kFrameHeaderBytes);
    EncodeFrameHeader(header, std::span<std::byte, kFrameHeaderBytes>(frame));
    frame.insert(frame.end(), body.begin(), body.end());
    SendBytes(frame);
    return header.request_id;
  }

  WireReply Call(MessageType type, const Body& body, std::uint64_t sequence = 0,
                 std::uint32_t timeout_ms = 20'000) {
    const std::uint64_t id = Request(type, body, sequence, timeout_ms);
    WireReply reply = ReadReply();
    ExpectEqual(reply.header.request_id, id);
    return reply;
  }

  // Returns false if the server closed before everything was written.
  bool SendBytes(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const iovec buffer{const_cast<std::byte*>(bytes.data()), bytes.size()};
      auto progress = channel_->Write({&buffer, 1});
      if (!progress.ok()) return false;
      bytes = bytes.subspan(progress.value().bytes);
      if (progress.value().ready != Ready::kDone) Await(progress.value().ready);
    }
    return true;
  }

  // The next reply; empty if the server closed the connection.
  std::optional<WireReply> TryReadReply() {
    std::array<std::byte, kFrameHeaderBytes> head;
    if (!ReadExactly(head)) return std::nullopt;
    WireReply reply;
    reply.header = RequireOk(DecodeFrameHeader(head, UINT64_MAX));
    reply.body.resize(reply.header.body_bytes);
    if (!ReadExactly(reply.body)) return std::nullopt;
    if ((reply.header.flags & kFlagError) != 0) reply.status = DecodeError(reply.body);
    return reply;
  }
  WireReply ReadReply() {
    auto reply = TryReadReply();
    Require(reply.has_value(), "the server closed the connection instead of a reply");
    return std::move(*reply);
  }

  // Returns true when the server has closed, whatever it sent before.
  bool AwaitClose() {
    std::array<std::byte, 4096> scratch;
    while (ReadSome(scratch) > 0) {
    }
    return true;
  }

 private:
  void Await(Ready ready) {
    pollfd entry{channel_->fd(), static_cast<short>(ready == Ready::kWantWrite ? POLLOUT : POLLIN),
                 0};
    Require(::poll(&entry, 1, kWireDeadlineMs) > 0, "the server did not answer in time");
  }

  std::size_t ReadSome(std::span<std::byte> out) {
    for (;;) {
      auto progress = channel_->Read(out);
      if (!progress.ok()) return 0;
      if (progress.value().ready == Ready::kDone) return progress.value().bytes;
      Await(progress.value().ready);
    }
  }

  bool ReadExactly(std::span<std::byte> out) {
    while (!out.empty()) {
      const std::size_t bytes = ReadSome(out);
      if (bytes == 0) return false;
      out = out.subspan(bytes);
    }
    return true;
  }

  std::unique_ptr<Channel> channel_;
  Status handshake_;
  std::uint64_t next_request_ = 1;
};

}  // namespace sparsefleet::testing
