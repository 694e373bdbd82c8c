// Exchanges over the host lane, whose memory is smaller than their frames.
#include <poll.h>

#include <functional>
#include <string>
#include <vector>

#include "client/exchange.h"
#include "testing/channel_pair.h"
#include "testing/check.h"
#include "transport/channel_kinds.h"

namespace sparsefleet::testing {
namespace {

constexpr std::size_t kCapacity = 8192;

// A channel whose peer acts right before each read.
class MeddledChannel final : public Channel {
 public:
  MeddledChannel(Channel& channel, std::function<void()> before_read)
      : channel_(channel), before_read_(std::move(before_read)) {}

  Result<Ready> Handshake() override { return channel_.Handshake(); }
  bool HasAnswered() const override { return channel_.HasAnswered(); }
  Result<Progress> Read(std::span<std::byte> out) override {
    before_read_();
    return channel_.Read(out);
  }
  Result<Progress> Write(std::span<const iovec> buffers) override {
    return channel_.Write(buffers);
  }
  bool HasBufferedInput() const override { return channel_.HasBufferedInput(); }
  int fd() const override { return channel_.fd(); }

 private:
  Channel& channel_;
  const std::function<void()> before_read_;
};

struct LaneExchange {
  ChannelPair pair;
  ReplyBuffer reply;
  Exchange exchange;
  std::vector<std::byte> body = std::vector<std::byte>(5 * kCapacity, std::byte{7});

  LaneExchange() {
    const auto factory = RequireOk(MakeLaneFactory(kTestKey, kCapacity));
    const auto fds = SocketPair();
    pair = {RequireOk(factory->Connect(fds[0])), RequireOk(factory->Accept(fds[1]))};
    const auto outcome = ShakeHands(pair.client, pair.server);
    RequireOk(outcome.client);
    RequireOk(outcome.server);
    FrameHeader header;
    header.type = MessageType::kPush;
    const iovec buffer{body.data(), body.size()};
    exchange.Begin(header, Exchange::TimePoint::max(), {&buffer, 1}, reply);
  }

  std::size_t ServerReads() {
    std::byte room[kCapacity];
    return RequireOk(pair.server->Read(room)).bytes;
  }

  bool MayGoOn() const {
    pollfd entry{pair.client->fd(), exchange.wanted_events(), 0};
    return ::poll(&entry, 1, 0) == 1;
  }
};

const Test kRoomWhileReading("room freed while the client looks for a reply is not missed", [] {
  LaneExchange lane;
  std::size_t read = 0;
  MeddledChannel channel(*lane.pair.client, [&] { read += lane.ServerReads(); });
  const std::size_t all = kFrameHeaderBytes + lane.body.size();
  for (int i = 0; i < 100 && read < all; ++i) {
    Expect(!RequireOk(lane.exchange.Step(channel, 1000)));
    read += lane.ServerReads();
    Require(read == all || lane.MayGoOn(), "the client waits for bytes that have already arrived");
  }
  ExpectEqual(read, all);
});

const Test kRefused(
    "the client finds the error for a frame that the server does not read to its end", [] {
      LaneExchange lane;
      Expect(!RequireOk(lane.exchange.Step(*lane.pair.client, 1000)));
      FrameHeader header;
      header.type = MessageType::kPush;
      header.flags = kFlagReply | kFlagError;
      const auto error = EncodeError({Code::kProtocol, "too long"});
      header.body_bytes = static_cast<std::uint32_t>(error.size());
      std::array<std::byte, kFrameHeaderBytes> head;
      EncodeFrameHeader(header, head);
      const iovec reply[] = {{head.data(), head.size()},
                             {const_cast<std::byte*>(error.data()), error.size()}};
      RequireOk(lane.pair.server->Write(reply));
      lane.pair.server.reset();
      Expect(lane.MayGoOn());
      Expect(RequireOk(lane.exchange.Step(*lane.pair.client, 1000)));
      ExpectCode(lane.exchange.outcome(), Code::kProtocol);
    });

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
