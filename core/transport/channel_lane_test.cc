#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "testing/channel_pair.h"
#include "testing/check.h"
#include "transport/channel_kinds.h"
#include "transport/lane_memory.h"
#include "transport/lane_socket.h"
#include "transport/stream_io.h"

namespace sparsefleet::testing {
namespace {

constexpr std::size_t kCapacity = 8192;

std::vector<std::byte> RandomBytes(std::size_t size, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(generator());
  return bytes;
}

iovec Buffer(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

std::unique_ptr<ChannelFactory> MakeLane(const std::string& key = kTestKey) {
  return RequireOk(MakeLaneFactory(key, kCapacity));
}

ChannelPair LanePair(int buffer_bytes = 0) {
  const auto fds = SocketPair(buffer_bytes);
  ChannelPair pair{RequireOk(MakeLane()->Connect(fds[0])), RequireOk(MakeLane()->Accept(fds[1]))};
  const auto outcome = ShakeHands(pair.client, pair.server);
  RequireOk(outcome.client);
  RequireOk(outcome.server);
  return pair;
}

// Bytes already in the channel.
void SendReserved(Channel& from, Channel& to, const std::vector<std::byte>& bytes) {
  const auto room = from.Reserve(bytes.size());
  ExpectEqual(room.size(), bytes.size());
  std::ranges::copy(bytes, room.begin());
  const std::array<iovec, 1> whole = {Buffer(room)};
  ExpectEqual(RequireOk(from.Write(whole)).bytes, bytes.size());
  std::vector<std::byte> got(bytes.size());
  ExpectEqual(RequireOk(to.Read(got)).bytes, bytes.size());
  Expect(got == bytes);
}

const Test kReserve("bytes in reserved memory arrive, between others and across a wrap", [] {
  auto pair = LanePair();
  for (unsigned i = 0; i < 50; ++i) {
    const auto before = RandomBytes(8 * (i + 1), i);
    const std::array<iovec, 1> first = {Buffer(before)};
    ExpectEqual(RequireOk(pair.server->Write(first)).bytes, before.size());
    const auto bytes = RandomBytes(3001, 100 + i);
    const auto room = pair.server->Reserve(bytes.size());
    std::ranges::copy(bytes, room.begin());
    // Read to the end, after which anything else would be written to the
    // beginning of the ring.
    std::vector<std::byte> got(before.size());
    ExpectEqual(RequireOk(pair.client->Read(got)).bytes, got.size());
    const std::array<iovec, 1> second = {Buffer(room)};
    ExpectEqual(RequireOk(pair.server->Write(second)).bytes, bytes.size());
    got.resize(bytes.size());
    ExpectEqual(RequireOk(pair.client->Read(got)).bytes, got.size());
    Expect(got == bytes);
    SendReserved(*pair.server, *pair.client, RandomBytes(kCapacity, i));
  }
});

const Test kReserveTooMuch("only contiguous memory is reserved", [] {
  auto pair = LanePair();
  Expect(pair.server->Reserve(kCapacity + 1).empty());
  const auto unread = RandomBytes(13, 1);
  const std::array<iovec, 1> odd = {Buffer(unread)};
  ExpectEqual(RequireOk(pair.server->Write(odd)).bytes, unread.size());
  Expect(pair.server->Reserve(8).empty());  // would not be aligned
  auto plain = ConnectedPair(TransportKind::kPlain);
  Expect(plain.server->Reserve(8).empty());
});

const Test kShake("two ends with the same key complete the handshake and exchange bytes", [] {
  auto pair = LanePair();
  const auto text = RandomBytes(100, 1);
  const std::array<iovec, 3> buffers = {Buffer(std::span(text).first(40)), iovec{nullptr, 0},
                                        Buffer(std::span(text).subspan(40))};
  for (int i = 0; i < 1000; ++i) {
    for (const auto& [from, to] : {std::pair(pair.client.get(), pair.server.get()),
                                   std::pair(pair.server.get(), pair.client.get())}) {
      ExpectEqual(RequireOk(from->Write(buffers)).bytes, text.size());
      std::vector<std::byte> got(100);
      ExpectEqual(RequireOk(to->Read(std::span(got).first(30))).bytes, 30u);
      Expect(to->HasBufferedInput());
      ExpectEqual(RequireOk(to->Read(std::span(got).subspan(30))).bytes, 70u);
      Expect(got == text);
      Expect(!to->HasBufferedInput());
      Expect(RequireOk(to->Read(got)).ready == Ready::kWantRead);
    }
  }
});

const Test kWrongKey("a wrong key is kAuthFailed on both sides", [] {
  const auto fds = SocketPair();
  auto client = RequireOk(MakeLane("some other key, long enough")->Connect(fds[0]));
  auto server = RequireOk(MakeLane()->Accept(fds[1]));
  const auto outcome = ShakeHands(client, server);
  ExpectCode(outcome.client, Code::kAuthFailed);
  ExpectCode(outcome.server, Code::kAuthFailed);
});

const Test kFull("a full lane accepts no more until the other end reads, which wakes the writer",
                 [] {
                   auto pair = LanePair();
                   const auto data = RandomBytes(kCapacity + 100, 2);
                   const iovec all = Buffer(data);
                   ExpectEqual(RequireOk(pair.client->Write({&all, 1})).bytes, kCapacity);
                   const iovec rest = Buffer(std::span(data).subspan(kCapacity));
                   Expect(RequireOk(pair.client->Write({&rest, 1})).ready == Ready::kWantRead);
                   pollfd entry{pair.client->fd(), POLLIN, 0};
                   ExpectEqual(::poll(&entry, 1, 0), 0);
                   std::vector<std::byte> got(data.size());
                   ExpectEqual(RequireOk(pair.server->Read(std::span(got).first(50))).bytes, 50u);
                   ExpectEqual(::poll(&entry, 1, 10'000), 1);
                   ExpectEqual(RequireOk(pair.client->Write({&rest, 1})).bytes, 50u);
                   std::size_t have = 50;
                   while (have < kCapacity + 50) {
                     have += RequireOk(pair.server->Read(std::span(got).subspan(have))).bytes;
                   }
                   Expect(std::equal(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(have),
                                     data.begin()));
                   // The wake-up is consumed once the writer has read.
                   std::byte room[1];
                   Expect(RequireOk(pair.client->Read(room)).ready == Ready::kWantRead);
                   ExpectEqual(::poll(&entry, 1, 0), 0);
                 });

// Bytes on their way from one end to the other, in pieces of random sizes.
struct Flow {
  Channel* from;
  Channel* to;
  std::span<const std::byte> data;
  std::mt19937 generator{7};
  std::size_t sent = 0;
  std::vector<std::byte> got{};

  bool is_over() const { return got.size() == data.size(); }
  void Step() {
    if (sent < data.size()) {
      const std::size_t first = std::min<std::size_t>(generator() % 5000, data.size() - sent);
      const std::array<iovec, 2> buffers = {Buffer(data.subspan(sent, first)),
                                            Buffer(data.subspan(sent + first))};
      sent += RequireOk(from->Write(buffers)).bytes;
    }
    std::byte room[6000];
    const auto progress = RequireOk(to->Read(std::span(room).first(1 + generator() % 6000)));
    got.insert(got.end(), room, room + progress.bytes);
  }
};

const Test kLarge("large transfers both ways through a small lane arrive unchanged", [] {
  for (const int buffer_bytes : {0, 2048}) {
    auto pair = LanePair(buffer_bytes);
    const auto up = RandomBytes(1'500'000, 11);
    const auto down = RandomBytes(2'000'001, 12);
    Flow rising{pair.client.get(), pair.server.get(), up};
    Flow falling{pair.server.get(), pair.client.get(), down};
    for (int i = 0; i < 1'000'000 && !(rising.is_over() && falling.is_over()); ++i) {
      rising.Step();
      falling.Step();
    }
    Expect(rising.got == up);
    Expect(falling.got == down);
  }
});

const Test kManySmall("many small unread writes fill the socket and are not lost", [] {
  auto pair = LanePair(2048);
  const auto data = RandomBytes(4000, 3);
  std::size_t sent = 0;
  Ready wants = Ready::kDone;
  while (sent < data.size() && wants == Ready::kDone) {
    const iovec one = Buffer(std::span(data).subspan(sent, 1));
    const auto progress = RequireOk(pair.client->Write({&one, 1}));
    sent += progress.bytes;
    wants = progress.ready;
  }
  Expect(wants == Ready::kWantWrite);
  std::vector<std::byte> got{};
  while (got.size() < data.size()) {
    std::byte room[100];
    const auto progress = RequireOk(pair.server->Read(room));
    got.insert(got.end(), room, room + progress.bytes);
    const iovec rest = Buffer(std::span(data).subspan(sent));
    if (sent < data.size()) sent += RequireOk(pair.client->Write({&rest, 1})).bytes;
  }
  Expect(got == data);
});

const Test kClosed("bytes written before the end are read; then zero bytes, then kPeerLost", [] {
  auto pair = LanePair();
  const auto text = RandomBytes(100, 1);
  const iovec buffer = Buffer(text);
  RequireOk(pair.client->Write({&buffer, 1}));
  pair.client.reset();
  std::byte room[200];
  ExpectEqual(RequireOk(pair.server->Read(room)).bytes, 100u);
  const auto end = RequireOk(pair.server->Read(room));
  Expect(end.ready == Ready::kDone && end.bytes == 0);
  ExpectCode(pair.server->Write({&buffer, 1}).status(), Code::kPeerLost);
});

const Test kEndsFull("a writer without room learns that the reader is gone", [] {
  auto pair = LanePair();
  const auto data = RandomBytes(kCapacity, 4);
  const iovec all = Buffer(data);
  RequireOk(pair.server->Write({&all, 1}));
  Expect(RequireOk(pair.server->Write({&all, 1})).ready == Ready::kWantRead);
  std::byte records[100];  // taken, so that the end is a clean one
  Require(ReceiveSome(pair.client->fd(), records).outcome == IoOutcome::kMoved);
  pair.client.reset();
  ExpectCode(pair.server->Write({&all, 1}).status(), Code::kPeerLost);
});

const Test kReadsOn("bytes of a writer that waited for room and is gone are read", [] {
  auto pair = LanePair();
  const auto data = RandomBytes(kCapacity, 5);
  const iovec all = Buffer(data);
  RequireOk(pair.server->Write({&all, 1}));
  Expect(RequireOk(pair.server->Write({&all, 1})).ready == Ready::kWantRead);
  pair.server.reset();
  std::vector<std::byte> got(kCapacity);
  ExpectEqual(RequireOk(pair.client->Read(std::span(got).first(10))).bytes, 10u);
  ExpectEqual(RequireOk(pair.client->Read(std::span(got).subspan(10))).bytes, kCapacity - 10);
  Expect(got == data);
  ExpectEqual(RequireOk(pair.client->Read(got)).bytes, 0u);
});

const Test kLies("a peer that points beyond the memory is disconnected", [] {
  for (const std::uint64_t begin : {std::uint64_t{0}, std::uint64_t{kCapacity - 1}, UINT64_MAX}) {
    auto pair = LanePair();
    const std::array<std::uint64_t, 2> record = {begin, UINT64_MAX};
    const iovec bytes{const_cast<std::uint64_t*>(record.data()), sizeof(record)};
    SendSome(pair.client->fd(), {&bytes, 1});
    std::byte room[10];
    ExpectCode(pair.server->Read(room).status(), Code::kPeerLost);
  }
});

const Test kForges("a peer that forges its read position harms only the shared memory", [] {
  const auto fds = SocketPair();
  auto server = RequireOk(MakeLane()->Accept(fds[1]));
  auto peer = RequireOk(RequireOk(MakePlainFactory(kTestKey))->Connect(fds[0]));
  const auto outcome = ShakeHands(peer, server);
  RequireOk(outcome.client);
  RequireOk(outcome.server);
  std::byte message[16];
  auto handed = RequireOk(ReceiveWithDescriptor(peer->fd(), message));
  Require(handed.has_value());
  const auto memory = RequireOk(LaneMemory::Open(std::move(*handed), kCapacity));
  const auto data = RandomBytes(kCapacity - 100, 6);
  const iovec all = Buffer(data);
  ExpectEqual(RequireOk(server->Write({&all, 1})).bytes, data.size());
  for (const std::uint64_t lie : {UINT64_MAX, std::uint64_t{3 * kCapacity}}) {
    memory.down().SetConsumed(lie);  // counts as: everything
    ExpectEqual(RequireOk(server->Write({&all, 1})).bytes, data.size());
  }
  memory.down().SetConsumed(0);  // counts as: nothing
  ExpectEqual(RequireOk(server->Write({&all, 1})).bytes, 100u);
  Expect(RequireOk(server->Write({&all, 1})).ready == Ready::kWantRead);
});

const Test kForeignMemory("memory that could shrink, or has the wrong size, is rejected", [] {
  const auto file = [](std::size_t bytes, int seals) {
    OwnedSocket fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    Require(::ftruncate(fd.fd(), static_cast<off_t>(bytes)) == 0);
    Require(::fcntl(fd.fd(), F_ADD_SEALS, seals) == 0);
    return fd;
  };
  RequireOk(LaneMemory::Open(file(4096 + 2 * 8192, F_SEAL_SHRINK), 8192).status());
  for (const std::uint64_t capacity : {std::uint64_t{0}, std::uint64_t{4096}, std::uint64_t{8193},
                                       std::uint64_t{1} << 62, UINT64_MAX}) {
    auto opened = LaneMemory::Open(file(4096 + 2 * 8192, F_SEAL_SHRINK), capacity);
    ExpectCode(opened.status(), Code::kProtocol);
  }
  ExpectCode(LaneMemory::Open(file(4096 + 2 * 8192, F_SEAL_GROW), 8192).status(), Code::kProtocol);
});

const Test kOtherUser("a process of another user is refused by both ends before a byte is sent",
                      [] {
                        if (::geteuid() != 0) return;  // only root can become another user
                        auto listener = RequireOk(ListenOnLane());
                        Dialer dialer(LaneAddress(listener.name, {"here", 1}));
                        Require(::seteuid(65534) == 0);
                        auto connected = dialer.Step();
                        Require(::seteuid(0) == 0);
                        auto client = RequireOk(std::move(connected));
                        const int accepted = ::accept(listener.socket.fd(), nullptr, nullptr);
                        const auto server = MakeLane()->Accept(accepted);
                        ExpectCode(server.status(), Code::kAuthFailed);
                        Expect(server.status().message().find("65534") != std::string::npos);
                      });

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
