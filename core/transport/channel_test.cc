#include "transport/channel.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "testing/channel_pair.h"
#include "testing/check.h"
#include "transport/channel_kinds.h"
#include "transport/stream_io.h"
#include "transport/tls_context.h"

namespace sparsefleet::testing {
namespace {

constexpr TransportKind kKinds[] = {TransportKind::kTls, TransportKind::kPlain};

std::vector<std::byte> RandomBytes(std::size_t size, unsigned seed) {
  std::mt19937 generator(seed);
  std::vector<std::byte> bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(generator());
  return bytes;
}

iovec Buffer(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

// A sender of `data` in pieces of random sizes, some of them empty.
struct Sender {
  Channel* channel;
  std::span<const std::byte> data;
  std::mt19937 generator{7};
  std::size_t at = 0;

  Ready Step() {
    if (at == data.size()) return Ready::kDone;
    std::vector<iovec> pieces;
    for (std::size_t from = at; from < data.size() && pieces.size() < 5;) {
      static constexpr std::size_t kSizes[] = {0, 1, 40, 1000, 16384, 16385, 50000};
      const std::size_t size = std::min(kSizes[generator() % 7], data.size() - from);
      pieces.push_back(Buffer(data.subspan(from, size)));
      from += size;
    }
    // The rest, so that a repeated call never offers less than the previous one.
    std::size_t offered = 0;
    for (const auto& piece : pieces) offered += piece.iov_len;
    pieces.push_back(Buffer(data.subspan(at + offered)));
    const auto progress = RequireOk(channel->Write(pieces));
    at += progress.bytes;
    return progress.ready == Ready::kDone ? Ready::kWantWrite : progress.ready;
  }
};

struct Receiver {
  Channel* channel;
  std::vector<std::byte> data;
  std::size_t wanted;

  Ready Step() {
    if (data.size() == wanted) return Ready::kDone;
    std::byte room[70'000];
    const auto progress = RequireOk(
        channel->Read(std::span(room).first(std::min(sizeof(room), wanted - data.size()))));
    if (progress.ready != Ready::kDone) return progress.ready;
    Require(progress.bytes > 0, "the stream ended early");
    data.insert(data.end(), room, room + progress.bytes);
    return data.size() == wanted ? Ready::kDone : Ready::kWantRead;
  }
};

std::vector<std::byte> Drain(int fd) {
  std::vector<std::byte> all;
  std::byte room[4096];
  for (;;) {
    const IoResult io = ReceiveSome(fd, room);
    if (io.outcome == IoOutcome::kNotReady) {
      pollfd entry{fd, POLLIN, 0};
      Require(::poll(&entry, 1, 10'000) > 0, "no end of the stream");
      continue;
    }
    if (io.outcome != IoOutcome::kMoved) return all;
    all.insert(all.end(), room, room + io.bytes);
  }
}

// What a server of this kind replies to a peer that sends `bytes` and then waits.
std::vector<std::byte> AnswerToStranger(TransportKind kind, std::span<const std::byte> bytes,
                                        Status& status) {
  const auto factory = MakeFactory(Security(kind));
  const auto fds = SocketPair();
  OwnedSocket stranger(fds[0]);
  RequireOk(PrepareSocket(stranger.fd()));
  auto server = RequireOk(factory->Accept(fds[1]));
  const iovec buffer = Buffer(bytes);
  Require(SendSome(stranger.fd(), {&buffer, 1}).bytes == bytes.size(), "stranger's bytes");
  for (;;) {
    const auto ready = server->Handshake();
    if (!ready.ok()) {
      status = ready.status();
      server.reset();
      return Drain(stranger.fd());
    }
    Require(ready.value() != Ready::kDone, "a stranger got in");
    pollfd entry{server->fd(), POLLIN, 0};
    if (::poll(&entry, 1, 0) == 0) return {};  // may wait for more
  }
}

HandshakeOutcome Meet(const SecurityOptions& client_options,
                      const SecurityOptions& server_options) {
  const auto fds = SocketPair();
  auto client = RequireOk(MakeFactory(client_options)->Connect(fds[0]));
  auto server = RequireOk(MakeFactory(server_options)->Accept(fds[1]));
  return ShakeHands(client, server);
}

const Test kShake("two ends with the same key complete the handshake and exchange bytes", [] {
  for (const auto kind : kKinds) {
    auto pair = ConnectedPair(kind);
    const auto text = RandomBytes(100, 1);
    const iovec buffer = Buffer(text);
    ExpectEqual(RequireOk(pair.client->Write({&buffer, 1})).bytes, text.size());
    std::vector<std::byte> got(100);
    ExpectEqual(RequireOk(pair.server->Read(got)).bytes, text.size());
    Expect(got == text);
    Expect(RequireOk(pair.server->Read(got)).ready == Ready::kWantRead);
  }
});

const Test kKeyLengths("keys of 16, 17 and 1000 bytes work, one of 15 is rejected", [] {
  for (const auto kind : kKinds) {
    for (const std::size_t size : {16, 17, 1000}) {
      const auto options = Security(kind, std::string(size, 'k'));
      const auto outcome = Meet(options, options);
      RequireOk(outcome.client);
      RequireOk(outcome.server);
    }
    ExpectCode(ChannelFactory::Create(Security(kind, std::string(15, 'k'))).status(),
               Code::kInvalidArgument);
  }
});

const Test kWrongKey("a wrong key is kAuthFailed on both sides and names the setting", [] {
  for (const auto kind : kKinds) {
    const auto outcome = Meet(Security(kind, "some other key, long enough"), Security(kind));
    ExpectCode(outcome.client, Code::kAuthFailed);
    ExpectCode(outcome.server, Code::kAuthFailed);
    Expect(outcome.client.message().find("SPARSEFLEET_JOB_KEY") != std::string::npos);
    Expect(outcome.server.message().find("SPARSEFLEET_JOB_KEY") != std::string::npos);
  }
});

const Test kMixed("a TLS end and a plain end refuse each other and say so", [] {
  for (const auto kind : kKinds) {
    const auto other = kind == TransportKind::kTls ? TransportKind::kPlain : TransportKind::kTls;
    const auto outcome = Meet(Security(kind), Security(other));
    ExpectCode(outcome.client, Code::kAuthFailed);
    ExpectCode(outcome.server, Code::kAuthFailed);
    Expect(outcome.client.message().find("plain") != std::string::npos);
  }
});

const Test kGarbage("a stranger's bytes are answered with nothing but a closed connection", [] {
  for (const auto kind : kKinds) {
    for (unsigned seed = 0; seed < 200; ++seed) {
      auto bytes = RandomBytes(1 + seed * 3, seed);
      // Including valid beginnings: a TLS record head, the plain preamble.
      if (seed % 3 == 1)
        std::memcpy(bytes.data(), "\x16\x03\x01", std::min<std::size_t>(3, bytes.size()));
      if (seed % 3 == 2)
        std::memcpy(bytes.data(), "SPPL\1\0\0\0", std::min<std::size_t>(8, bytes.size()));
      Status status;
      ExpectEqual(AnswerToStranger(kind, bytes, status).size(), 0u);
      if (!status.ok()) ExpectCode(status, Code::kAuthFailed);
    }
  }
});

// Records what a client with a key sends first.
std::vector<std::byte> FirstMessage(TransportKind kind, const std::string& key) {
  const auto fds = SocketPair();
  OwnedSocket peer(fds[1]);
  RequireOk(PrepareSocket(peer.fd()));
  auto client = RequireOk(MakeFactory(Security(kind, key))->Connect(fds[0]));
  Require(RequireOk(client->Handshake()) == Ready::kWantRead);
  client.reset();
  return Drain(peer.fd());
}

const Test kWrongKeyGetsNothing("a client with another key receives not one byte", [] {
  for (const auto kind : kKinds) {
    Status status;
    const auto first = FirstMessage(kind, "some other key, long enough");
    ExpectEqual(AnswerToStranger(kind, first, status).size(), 0u);
    ExpectCode(status, Code::kAuthFailed);
  }
});

const Test kReplay("replaying a first message does not admit a second client", [] {
  for (const auto kind : kKinds) {
    const auto fds = SocketPair();
    OwnedSocket thief(fds[0]);
    auto server = RequireOk(MakeFactory(Security(kind))->Accept(fds[1]));
    const auto first = FirstMessage(kind, kTestKey);
    const auto forged = RandomBytes(200, 3);
    for (const auto* bytes : {&first, &forged}) {
      const iovec buffer = Buffer(*bytes);
      SendSome(thief.fd(), {&buffer, 1});
      const auto ready = server->Handshake();
      if (bytes == &first) {
        Expect(RequireOk(ready) == Ready::kWantRead);
      } else {
        ExpectCode(ready.status(), Code::kAuthFailed);
      }
    }
  }
});

const Test kCloseEarly("a close during the handshake is reported according to the side", [] {
  for (const auto kind : kKinds) {
    auto fds = SocketPair();
    CloseSocket(fds[1]);
    auto client = RequireOk(MakeFactory(Security(kind))->Connect(fds[0]));
    auto ready = client->Handshake();
    ExpectCode(ready.status(), Code::kAuthFailed);

    fds = SocketPair();
    CloseSocket(fds[0]);
    auto server = RequireOk(MakeFactory(Security(kind))->Accept(fds[1]));
    ExpectCode(server->Handshake().status(), Code::kPeerLost);
  }
});

const Test kClosed("a clean end reads as zero bytes, writing after it is kPeerLost", [] {
  for (const auto kind : kKinds) {
    auto pair = ConnectedPair(kind);
    pair.client.reset();
    std::byte room[10];
    const auto progress = RequireOk(pair.server->Read(room));
    Expect(progress.ready == Ready::kDone && progress.bytes == 0);
    const auto text = RandomBytes(100, 1);
    const iovec buffer = Buffer(text);
    ExpectCode(pair.server->Write({&buffer, 1}).status(), Code::kPeerLost);
  }
});

const Test kTruncated("a TLS stream cut without notice is kPeerLost, repeatedly", [] {
  auto pair = ConnectedPair(TransportKind::kTls);
  pair.client->Shutdown();
  std::byte room[10];
  ExpectCode(pair.server->Read(room).status(), Code::kPeerLost);
  ExpectCode(pair.server->Read(room).status(), Code::kPeerLost);
});

const Test kTampered("a TLS record modified in transit is kPeerLost", [] {
  // Writes to the client's socket directly, bypassing its channel.
  auto pair = ConnectedPair(TransportKind::kTls);
  const auto forged = RandomBytes(64, 5);
  const iovec buffer = Buffer(forged);
  SendSome(pair.client->fd(), {&buffer, 1});
  std::byte room[10];
  ExpectCode(pair.server->Read(room).status(), Code::kPeerLost);
});

const Test kLarge("large transfers both ways through tiny socket buffers arrive unchanged", [] {
  for (const auto kind : kKinds) {
    auto pair = ConnectedPair(kind, 2048);
    const auto up = RandomBytes(1'500'000, 11);
    const auto down = RandomBytes(2'000'001, 12);
    Sender client_sends{pair.client.get(), up};
    Sender server_sends{pair.server.get(), down};
    Receiver client_reads{pair.client.get(), {}, down.size()};
    Receiver server_reads{pair.server.get(), {}, up.size()};
    for (bool going = true; going;) {
      going = false;
      for (const Ready ready :
           {client_sends.Step(), server_sends.Step(), client_reads.Step(), server_reads.Step()}) {
        going = going || ready != Ready::kDone;
      }
    }
    Expect(client_reads.data == down);
    Expect(server_reads.data == up);
  }
});

// Copies one direction of a TLS stream and counts the records of one length.
class Tap {
 public:
  Tap(int from, int to, std::size_t length)
      : from_(from), to_(to), length_(length), thread_([this] { Copy(); }) {}
  // Waits for the end of the stream.
  std::size_t Count() {
    thread_.join();
    return count_;
  }

 private:
  void Copy() {
    std::byte room[4096];
    for (ssize_t size = 0; (size = ::read(from_, room, sizeof(room))) > 0;) {
      Note(std::span(room).first(static_cast<std::size_t>(size)));
      for (ssize_t at = 0; at < size;) {
        const iovec rest{room + at, static_cast<std::size_t>(size - at)};
        const IoResult io = SendSome(to_, {&rest, 1});
        if (io.outcome != IoOutcome::kMoved) return;  // the other side needs no more
        at += static_cast<ssize_t>(io.bytes);
      }
    }
    ::shutdown(to_, SHUT_WR);
  }
  void Note(std::span<const std::byte> bytes) {
    pending_.insert(pending_.end(), bytes.begin(), bytes.end());
    std::size_t at = 0;
    while (pending_.size() - at >= 5) {
      const auto byte = [&](std::size_t i) { return static_cast<std::size_t>(pending_[at + i]); };
      const std::size_t length = byte(3) << 8 | byte(4);
      if (pending_.size() - at < 5 + length) break;
      if (byte(0) == 23 && length == length_) ++count_;
      at += 5 + length;
    }
    pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(at));
  }

  const int from_;
  const int to_;
  const std::size_t length_;
  std::vector<std::byte> pending_;
  std::size_t count_ = 0;
  std::jthread thread_;  // last: it uses the members above
};

const Test kKeyUpdates("both sides renew their keys many times and lose no byte", [] {
  // A KeyUpdate has 5 bytes, a content type and a tag of 16 bytes; no other record here is as
  // short.
  constexpr std::size_t kUpdateBytes = 5 + 1 + 16;
  SecurityOptions options = Security(TransportKind::kTls);
  options.tls_records_per_key = 2;
  const auto client_factory = MakeFactory(options);
  const auto server_factory = MakeFactory(options);
  const auto client_side = SocketPair();
  const auto server_side = SocketPair();
  ChannelPair pair{RequireOk(client_factory->Connect(client_side[0])),
                   RequireOk(server_factory->Accept(server_side[1]))};
  const OwnedSocket near(client_side[1]);
  const OwnedSocket far(server_side[0]);
  Tap upwards(near.fd(), far.fd(), kUpdateBytes);
  Tap downwards(far.fd(), near.fd(), kUpdateBytes);
  const auto outcome = ShakeHands(pair.client, pair.server);
  RequireOk(outcome.client);
  RequireOk(outcome.server);
  const auto up = RandomBytes(3'000'000, 11);
  const auto down = RandomBytes(2'000'001, 12);
  Sender client_sends{pair.client.get(), up};
  Sender server_sends{pair.server.get(), down};
  Receiver client_reads{pair.client.get(), {}, down.size()};
  Receiver server_reads{pair.server.get(), {}, up.size()};
  for (bool going = true; going;) {
    going = false;
    for (const Ready ready :
         {client_sends.Step(), server_sends.Step(), client_reads.Step(), server_reads.Step()}) {
      going = going || ready != Ready::kDone;
    }
  }
  Expect(client_reads.data == down);
  Expect(server_reads.data == up);
  pair.client.reset();
  pair.server.reset();
  ExpectEqual(upwards.Count(), client_factory->key_updates());
  ExpectEqual(downwards.Count(), server_factory->key_updates());
  Expect(client_factory->key_updates() >= up.size() / (16384 * 2) - 1);
  Expect(server_factory->key_updates() >= down.size() / (16384 * 2) - 1);
});

const Test kSmallRecords("keys are renewed between small records too", [] {
  SecurityOptions options = Security(TransportKind::kTls);
  options.tls_records_per_key = 1;
  const auto factory = MakeFactory(options);
  const auto fds = SocketPair();
  ChannelPair pair{RequireOk(factory->Connect(fds[0])), RequireOk(factory->Accept(fds[1]))};
  const auto outcome = ShakeHands(pair.client, pair.server);
  RequireOk(outcome.client);
  RequireOk(outcome.server);
  for (unsigned i = 0; i < 1000; ++i) {
    Channel& from = i % 2 == 0 ? *pair.client : *pair.server;
    Channel& to = i % 2 == 0 ? *pair.server : *pair.client;
    const auto text = RandomBytes(1 + i % 300, i);
    const iovec buffer = Buffer(text);
    ExpectEqual(RequireOk(from.Write({&buffer, 1})).bytes, text.size());
    std::vector<std::byte> got(text.size());
    ExpectEqual(RequireOk(to.Read(got)).bytes, text.size());
    Require(got == text, "a different text arrived");
  }
  ExpectEqual(factory->key_updates(), 998u);
});

const Test kRequestedUpdate("a peer may request a new key while much is unsent", [] {
  const auto fds = SocketPair(2048);
  auto server = RequireOk(MakeFactory(Security(TransportKind::kTls))->Accept(fds[1]));
  const OwnedSocket client_fd(fds[0]);
  RequireOk(PrepareSocket(client_fd.fd()));
  const auto context = RequireOk(TlsContext::Create(kTestKey));
  TlsSocket client_socket;
  client_socket.fd = client_fd.fd();
  const std::unique_ptr<SSL, decltype(&SSL_free)> client(
      RequireOk(context->NewConnection(Side::kClient, client_socket)), &SSL_free);
  for (bool going = true; going;) {
    going = SSL_do_handshake(client.get()) != 1;
    going = RequireOk(server->Handshake()) != Ready::kDone || going;
  }
  const auto down = RandomBytes(500'000, 12);
  Sender server_sends{server.get(), down};
  Ready ready = Ready::kDone;
  // Until the socket is full, so that records wait in the channel.
  do {
    ready = server_sends.Step();
    Require(server_sends.at < down.size(), "the socket accepts everything");
  } while (ready != Ready::kWantWrite || server_sends.Step() != Ready::kWantWrite);
  std::size_t moved = 0;
  Require(SSL_key_update(client.get(), SSL_KEY_UPDATE_REQUESTED) == 1, "update");
  Require(SSL_write_ex(client.get(), "up", 2, &moved) == 1, "write");
  std::byte room[2];
  ExpectEqual(RequireOk(server->Read(room)).bytes, 2u);
  std::vector<std::byte> got;
  while (got.size() < down.size()) {
    server_sends.Step();
    std::byte more[20'000];
    if (SSL_read_ex(client.get(), more, sizeof(more), &moved) == 1) {
      got.insert(got.end(), more, more + moved);
    } else {
      Require(SSL_get_error(client.get(), 0) == SSL_ERROR_WANT_READ, "the stream is broken");
    }
  }
  Expect(got == down);
});

const Test kBuffered("buffered input is reported while there is some, but not for half a record",
                     [] {
                       auto pair = ConnectedPair(TransportKind::kTls);
                       const auto text = RandomBytes(1000, 1);
                       const iovec buffer = Buffer(text);
                       RequireOk(pair.client->Write({&buffer, 1}));
                       std::vector<std::byte> got(400);
                       ExpectEqual(RequireOk(pair.server->Read(got)).bytes, 400u);
                       Expect(pair.server->HasBufferedInput());
                       got.resize(1000);
                       ExpectEqual(RequireOk(pair.server->Read(got)).bytes, 600u);
                       Expect(!pair.server->HasBufferedInput());

                       const std::byte head[] = {std::byte{23}, std::byte{3}, std::byte{3}};
                       const iovec half = Buffer(head);
                       SendSome(pair.client->fd(), {&half, 1});
                       Expect(RequireOk(pair.server->Read(got)).ready == Ready::kWantRead);
                       Expect(!pair.server->HasBufferedInput());
                     });

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }
