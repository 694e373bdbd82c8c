// A server that follows a test's script: real sockets, scripted replies.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "testing/channel_pair.h"
#include "testing/check.h"
#include "transport/channel.h"
#include "transport/frame.h"
#include "transport/messages.h"
#include "transport/socket.h"

namespace sparsefleet::testing {

// How the server treats a request.
struct Act {
  enum class Kind {
    kReply,         // with `body`
    kError,         // with `error`
    kClose,         // instead of a reply
    kCloseInFrame,  // after the reply's header and half of `body`
    kGarbage,       // bytes that are not a frame
    kSilence,       // no reply; the connection stays open
  };
  Kind kind = Kind::kReply;
  Body body;
  Status error;

  static Act Reply(Body body = {}) { return {Kind::kReply, std::move(body), {}}; }
  static Act Error(Code code, std::string message) {
    return {Kind::kError, {}, Status(code, std::move(message))};
  }
  static Act Only(Kind kind, Body body = {}) { return {kind, std::move(body), {}}; }
};

class FakeServer {
 public:
  // Called for every request but hello, on the connection's thread.
  using Script = std::function<Act(const FrameHeader& header, std::span<const std::byte> body)>;

  explicit FakeServer(Script script, TransportKind kind = TransportKind::kPlain)
      : script_(std::move(script)),
        factory_(MakeFactory(Security(kind))),
        listener_(RequireOk(Listen({"127.0.0.1", 0}))),
        port_(RequireOk(BoundPort(listener_.fd()))),
        acceptor_([this] { Accept(); }) {}

  ~FakeServer() {
    stopping_ = true;
    ::shutdown(listener_.fd(), SHUT_RDWR);
    acceptor_.join();
    CloseAll();
    for (auto& peer : peers_) peer.thread.join();
  }

  std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }
  std::atomic<std::uint64_t> incarnation{77};
  std::atomic<std::uint64_t> session{5};
  std::atomic<std::uint64_t> max_frame_bytes{1 << 20};
  std::atomic<std::uint8_t> version{kProtocolVersion};  // in the headers of replies
  std::atomic<bool> answers{true};                      // false: reads, but never replies
  std::atomic<int> greetings{0};

  // Closes every connection.
  void CloseAll() {
    std::lock_guard lock(mutex_);
    for (auto& peer : peers_) {
      if (peer.channel) peer.channel->Shutdown();
    }
  }

 private:
  struct Peer {
    std::unique_ptr<Channel> channel;  // destroyed by the thread, under mutex_
    std::thread thread;
  };

  static bool Await(const Channel& channel, Ready ready) {
    pollfd entry{channel.fd(), static_cast<short>(ready == Ready::kWantRead ? POLLIN : POLLOUT), 0};
    return ::poll(&entry, 1, 30'000) > 0;
  }

  void Accept() {
    for (;;) {
      pollfd entry{listener_.fd(), POLLIN, 0};
      if (::poll(&entry, 1, 30'000) < 0 || stopping_) return;
      const int fd = ::accept(listener_.fd(), nullptr, nullptr);
      if (fd < 0) continue;
      auto channel = factory_->Accept(fd);
      if (!channel.ok()) continue;
      std::lock_guard lock(mutex_);
      Peer& peer = peers_.emplace_back();
      peer.channel = std::move(channel).value();
      peer.thread = std::thread([this, &peer] {
        Serve(*peer.channel);
        std::lock_guard end(mutex_);
        peer.channel.reset();
      });
    }
  }

  void Serve(Channel& channel) {
    for (;;) {
      const auto ready = channel.Handshake();
      if (!ready.ok()) return;
      if (ready.value() == Ready::kDone) break;
      if (!Await(channel, ready.value())) return;
    }
    std::array<std::byte, kFrameHeaderBytes> head;
    while (ReadAll(channel, head)) {
      const auto header = DecodeFrameHeader(head, 64 << 20);
      if (!header.ok()) return;
      Body body(header.value().body_bytes);
      if (!ReadAll(channel, body)) return;
      if (answers && !Answer(channel, header.value(), body)) return;
    }
  }

  bool Answer(Channel& channel, const FrameHeader& request, const Body& body) {
    if (request.type == MessageType::kHello) {
      ++greetings;
      return SendReply(channel, request,
                       Encode(HelloReply{incarnation, max_frame_bytes, 10.0, session}), kFlagReply);
    }
    const Act act = script_(request, body);
    switch (act.kind) {
      case Act::Kind::kReply:
        return SendReply(channel, request, act.body, kFlagReply);
      case Act::Kind::kError:
        return SendReply(channel, request, EncodeError(act.error), kFlagReply | kFlagError);
      case Act::Kind::kClose:
        return false;
      case Act::Kind::kCloseInFrame:
        SendReply(channel, request, act.body, kFlagReply, act.body.size() / 2);
        return false;
      case Act::Kind::kGarbage:
        return WriteAll(channel, Body(100, std::byte{0x5a}));
      case Act::Kind::kSilence:
        return true;
    }
    return false;
  }

  bool SendReply(Channel& channel, const FrameHeader& request, const Body& body, int flags,
                 std::size_t left_out = 0) {
    FrameHeader header;
    header.version = version;
    header.type = request.type;
    header.flags = static_cast<std::uint16_t>(flags);
    header.request_id = request.request_id;
    header.sequence = request.sequence;
    header.body_bytes = static_cast<std::uint32_t>(body.size());
    Body frame(kFrameHeaderBytes);
    EncodeFrameHeader(header, std::span<std::byte, kFrameHeaderBytes>(frame));
    frame.insert(frame.end(), body.begin(), body.end() - static_cast<std::ptrdiff_t>(left_out));
    return WriteAll(channel, frame);
  }

  static bool ReadAll(Channel& channel, std::span<std::byte> room) {
    while (!room.empty()) {
      const auto progress = channel.Read(room);
      if (!progress.ok()) return false;
      if (progress.value().ready != Ready::kDone) {
        if (!Await(channel, progress.value().ready)) return false;
        continue;
      }
      if (progress.value().bytes == 0) return false;
      room = room.subspan(progress.value().bytes);
    }
    return true;
  }

  static bool WriteAll(Channel& channel, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const iovec buffer{const_cast<std::byte*>(bytes.data()), bytes.size()};
      const auto progress = channel.Write({&buffer, 1});
      if (!progress.ok()) return false;
      if (progress.value().ready != Ready::kDone && !Await(channel, progress.value().ready)) {
        return false;
      }
      bytes = bytes.subspan(progress.value().bytes);
    }
    return true;
  }

  const Script script_;
  const std::unique_ptr<ChannelFactory> factory_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::list<Peer> peers_;
  OwnedSocket listener_;
  const std::uint16_t port_;
  std::thread acceptor_;
};

}  // namespace sparsefleet::testing
